"""Uploads stream through while they are being sent, and may be refused before they are whole."""

from __future__ import annotations

import asyncio

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes


async def test_uploads_of_unknown_length_stream_through() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", "/up", {"Transfer-Encoding": "chunked"}, mock={"echo": True}))
        for _ in range(20):
            client.send(b"5\r\nhello\r\n")
            await asyncio.sleep(0)
        client.send(b"0\r\n\r\n")
        answer = await client.answer()
        assert answer.body == b"hello" * 20
        assert up.seen[-1].header("transfer-encoding") == "chunked"
        await stack.settled()


async def test_an_upload_reaches_the_upstream_while_it_is_still_being_sent() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("PUT", "/up", {"Content-Length": "10"})[:])
        client.send(b"12345")
        await up.until(lambda: len(up.seen) == 1)
        client.send(b"67890")
        assert (await client.answer()).status == 200
        assert up.seen[-1].body == b"1234567890"


async def test_expect_100_continue_is_answered_by_the_upstream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(
            request_bytes("PUT", "/up", {"Expect": "100-continue", "Content-Length": "5"}, mock={"echo": True})
        )
        status, _, _ = await client.head()
        assert status == 100
        assert up.seen[-1].continued
        client.send(b"hello")
        assert (await client.answer()).body == b"hello"


async def test_expect_100_continue_on_an_inspected_route() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        body = b'{"model":"m","messages":[]}'
        client.send(
            request_bytes(
                "POST", "/v1/chat/completions", {"Expect": "100-continue", "Content-Length": str(len(body))}
            )
        )
        status, _, _ = await client.head()
        assert status == 100
        client.send(body)
        assert (await client.answer()).status == 200
        assert up.seen[-1].header("expect") is None


async def test_an_early_refusal_of_an_upload_reaches_the_client() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(
            request_bytes(
                "PUT", "/up", {"Content-Length": "1000000"},
                mock={"answer_early": True, "status": 413, "body": "too big"},
            )
        )  # fmt: skip
        client.send(b"x" * 1000)
        answer = await client.answer()
        assert (answer.status, answer.body) == (413, b"too big")
        client.abort()
        await stack.settled()
