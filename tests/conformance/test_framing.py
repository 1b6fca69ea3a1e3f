"""Every answer has one framing that its client understands, and the connection stays in step."""

from __future__ import annotations

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("size", [0, 5, 100_000, 600_000])
async def test_one_framing_whatever_the_upstreams(framing: str, size: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            answer = await client.ask("GET", "/x", mock={"framing": framing, "body_size": size})
            assert answer.complete
            assert answer.body == b"x" * size
            assert (answer.header("content-length") is None) != (answer.header("transfer-encoding") is None)
        await stack.settled()


async def test_http_1_0_clients_get_no_chunks_and_a_close() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(b'GET /x HTTP/1.0\r\nHost: a\r\nX-Mock: {"framing":"chunked","body":"hello"}\r\n\r\n')
        raw = await client.closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        assert body == b"hello"
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_body_have_none(status: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"status": status, "body": ""})
        assert answer.status == status
        assert answer.header("transfer-encoding") is None
        assert (await client.ask("GET", "/y")).body == b"GET /y", "the connection is still in step"


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_head_describes_a_body_and_brings_none(framing: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("HEAD", "/x", mock={"framing": framing, "body": "12345"})
        assert answer.status == 200
        if framing == "length":
            assert answer.header("content-length") == "5"
        assert (await client.ask("GET", "/y")).body == b"GET /y"
        await stack.settled()


async def test_interim_answers_do_not_confuse_anybody() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"interim": 103, "body": "fine"})
        assert (answer.status, answer.body) == (200, b"fine")
