"""Lengths that are merely claimed, in requests and in answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient
from tests.support.scripted import Asked, Said, Scripted

PATHS = ("/v1/embeddings", "/v2/models/m/infer", "/elsewhere")
ZEROS = "0" * 4400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", ["9" * 5000, "9" * 25, str(2**64), "-1", "1e5", "+5", "0x5"])
async def test_a_length_that_is_no_number_of_bytes_is_400(path: str, length: str) -> None:
    async with MockUpstream() as up, Stack(up.url, dispatch="merge") as stack, RawClient(stack.port) as client:
        client.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
        assert (await client.answer()).status == 400
        assert up.seen == []


@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("length", [2**63 - 1, 10**15])
async def test_more_than_is_allowed_is_413_before_a_byte_of_it(path: str, length: int) -> None:
    async with MockUpstream() as up, Stack(up.url, dispatch="merge") as stack, RawClient(stack.port) as client:
        client.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
        assert (await client.answer()).status == 413


@pytest.mark.parametrize("path", PATHS)
async def test_a_length_with_thousands_of_zeros_before_it_is_that_length(path: str) -> None:
    body = b'{"input":"x"}'
    async with MockUpstream() as up, Stack(up.url, dispatch="merge") as stack, RawClient(stack.port) as client:
        for _ in range(2):
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {ZEROS}{len(body)}\r\n\r\n"
            client.send(head.encode() + body)
            assert (await client.answer()).status == 200
        assert [seen.body for seen in up.seen] == [body, body]


@pytest.mark.parametrize("path", PATHS[::2])
async def test_so_is_one_in_an_answer(path: str) -> None:
    def padded(asked: Asked) -> Any:
        said = Said({"got": len(asked.body)}).encode()
        return Written(said.replace(b"Content-Length: ", b"Content-Length: " + ZEROS.encode()))

    class Written(Said):
        def encode(self) -> bytes:
            body: bytes = self.body
            return body

    async with Scripted(padded) as up, Stack(up.url, dispatch="merge") as stack, RawClient(stack.port) as client:
        for _ in range(2):
            answer = await asyncio.wait_for(client.ask("POST", path, body={"input": "x"}), 10)
            assert answer.json == {"got": len(up.asked[-1].body)}
