"""Requests that two parsers could read in two ways are refused, and nothing of them reaches an upstream."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

POST = b"POST /x HTTP/1.1\r\nHost: a\r\n"

REFUSED = {
    "content-length with transfer-encoding": POST
    + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "transfer-encoding with content-length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG",
    "two different content-lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "two equal content-lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "content-length list": POST + b"Content-Length: 2, 2\r\n\r\nab",
    "unknown transfer-encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "unknown transfer-encoding with length": POST + b"Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc",
    "transfer-encoding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "gzip before chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "space before colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "space before colon of another field": POST + b"X-Y : 1\r\nContent-Length: 0\r\n\r\n",
    "transfer-encoding on 1.0": b"POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative content-length": POST + b"Content-Length: -1\r\n\r\n",
    "signed content-length": POST + b"Content-Length: +3\r\n\r\nabc",
    "hexadecimal content-length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "content-length with a space inside": POST + b"Content-Length: 1 0\r\n\r\n0123456789",
    "underscored content-length": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "empty content-length": POST + b"Content-Length: \r\n\r\n",
    "huge content-length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "bare lf lines": b"GET /x HTTP/1.1\nHost: a\n\n",
    "bare lf in head": b"GET /x HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare cr in value": b"GET /x HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "nul in value": b"GET /x HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "nul in name": b"GET /x HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n",
    "space in name": b"GET /x HTTP/1.1\r\nHost: a\r\nX Y: b\r\n\r\n",
    "control in name": b"GET /x HTTP/1.1\r\nHost: a\r\nX\x01Y: b\r\n\r\n",
    "empty name": b"GET /x HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "obs-fold": b"GET /x HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "folded first field": b"GET /x HTTP/1.1\r\n Host: a\r\n\r\n",
    "no host": b"GET /x HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two equal hosts": b"GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "half an address as host": b"GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "no address in brackets": b"GET /x HTTP/1.1\r\nHost: [:::1]\r\n\r\n",
    "user in host": b"GET /x HTTP/1.1\r\nHost: user@a\r\n\r\n",
    "path in host": b"GET /x HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "space in host": b"GET /x HTTP/1.1\r\nHost: a b\r\n\r\n",
    "no port in host": b"GET /x HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "port too large": b"GET /x HTTP/1.1\r\nHost: a:65536\r\n\r\n",
    "backslash in host": b"GET /x HTTP/1.1\r\nHost: a\\b\r\n\r\n",
    "bytes in host": b"GET /x HTTP/1.1\r\nHost: a\xff\r\n\r\n",
    "user in absolute target": b"GET http://user@a/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "host on 1.0": b"GET /x HTTP/1.0\r\nHost: [::1\r\n\r\n",
    "dot segments": b"GET /v1/../admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "a dot segment": b"GET /v1/./models HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments at the end": b"GET /v1/.. HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded dot segments": b"GET /v1/%2e%2E/admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "half encoded dot segments": b"GET /v1/.%2e/admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments with encoded slashes": b"GET /v1%2f..%2fadmin HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments with backslashes": b"GET /v1/..\\admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments with encoded backslashes": b"GET /v1%5c..%5cadmin HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments with parameters": b"GET /v1/..;x/admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "dot segments of an absolute target": b"GET http://a/v1/../admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute target with another port": b"GET http://a:81/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute target with another scheme's port": b"GET https://a:80/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute target with another host": b"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "chunk size over 2^63": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab\r\n0\r\n\r\n",
    "negative chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n",
    "empty chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n\r\nab\r\n0\r\n\r\n",
    "prefixed chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n",
    "chunk size with a space": POST + b"Transfer-Encoding: chunked\r\n\r\n2 \r\nab\r\n0\r\n\r\n",
    "chunk size ended by lf": POST + b"Transfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n",
    "chunk extension ended by lf": POST + b"Transfer-Encoding: chunked\r\n\r\n2;a\nab\r\n0\r\n\r\n",
    "chunk data without crlf": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabX0\r\n\r\n",
    "space in target": b"GET /x y HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown version": b"GET /x HTTP/9.9\r\nHost: a\r\n\r\n",
    "lower-case version": b"GET /x http/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /x\r\nHost: a\r\n\r\n",
    "fragment in target": b"GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment behind an operation": b"POST /v1/chat/completions#y HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "connect to a path": b"CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n",
    "connect": b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
}


async def send(stack: Stack, payload: bytes) -> tuple[int, bytes]:
    """Return the first status (0 when the connection was closed without one) and everything that came."""
    async with RawClient(stack.port) as client:
        client.send(payload)
        try:
            raw = await asyncio.wait_for(client.reader.read(65536), 3)
        except (ConnectionError, TimeoutError):
            raw = b""
    return (int(raw.split(b" ")[1]), raw) if raw.startswith(b"HTTP/1.") else (0, raw)


@pytest.mark.parametrize("name", REFUSED)
async def test_ambiguous_requests_are_refused_and_not_forwarded(name: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        status, raw = await send(stack, REFUSED[name])
        assert status in (0, 400, 413, 431, 501, 505), raw
        assert not [seen for seen in up.seen if seen.finished], "it was answered by the upstream"
        assert not any(seen.body for seen in up.seen)
        if status:
            assert b"connection: close" in raw.lower(), "the rest of the connection cannot be trusted"
            assert b"application/json" in raw.lower()
        await stack.settled()


@pytest.mark.parametrize("path", ["/x", "/v1/chat/completions"])
@pytest.mark.parametrize("declared", [-1, 3])
async def test_a_length_that_is_off_does_not_smuggle(path: str, declared: int) -> None:
    """Too short: the rest is the next request, and no proper one. Too long: the request waits for its body."""
    body = b'{"model":"m","messages":[]}'
    payload = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body) + declared,
        body,
    )
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(payload)
        if declared > 0:
            client.writer.write_eof()
            await client.closed()
            assert not any(seen.body for seen in up.seen)
        else:
            first = await client.answer()
            rest = await client.closed()
            assert first.status == 400 or b"400" in rest.split(b"\r\n")[0]
        await stack.settled()
        assert len([s for s in up.seen if s.finished]) <= 1


ACCEPTED = {
    "tab before value": b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "chunk extension": b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n0\r\n\r\n",
    "capital transfer-encoding": POST + b"Transfer-Encoding: CHUNKED\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "absolute target with the default port": b"GET http://A:80/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute target without the default port": b"GET http://a/x HTTP/1.1\r\nHost: a:80\r\n\r\n",
    "absolute target with its host": b"GET http://a/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute target without a path": b"GET http://a?b=c HTTP/1.1\r\nHost: a\r\n\r\n",
    "host with a port": b"GET /x HTTP/1.1\r\nHost: a_b.c-d:8080\r\n\r\n",
    "address as host": b"GET /x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    "empty host": b"GET /x HTTP/1.1\r\nHost:\r\n\r\n",
    "dots in names": b"GET /.well-known/...a/v1.0/x..y HTTP/1.1\r\nHost: a\r\n\r\n",
    "dots in a query": b"GET /x?path=../y HTTP/1.1\r\nHost: a\r\n\r\n",
    "body on get": b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
    "options star": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("name", ACCEPTED)
async def test_unusual_but_clear_requests_pass_with_one_clear_framing(name: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        status, raw = await send(stack, ACCEPTED[name])
        assert status == 200, raw
        seen = up.seen[-1]
        assert len(seen.all("content-length")) + len(seen.all("transfer-encoding")) <= 1
        assert seen.body == (b"ab" if b"ab" in ACCEPTED[name].partition(b"\r\n\r\n")[2] else b"")
        assert seen.target in ("/x", "/?b=c", "*", "/.well-known/...a/v1.0/x..y", "/x?path=../y")
        await stack.settled()


async def test_body_on_head_is_passed_and_its_answer_has_none() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
        assert (await client.answer(head_only=True)).status == 200
        assert (await client.ask("GET", "/y")).body == b"GET /y"
        assert up.seen[0].body == b"ab"


async def test_pipelined_requests_are_answered_in_order_and_sent_apart() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(
            b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        assert [(await client.answer()).body for _ in range(3)] == [b"GET /1", b"GET /2", b"GET /3"]
        assert [seen.target for seen in up.seen] == ["/1", "/2", "/3"]
        await stack.settled()


async def test_connection_cannot_be_used_to_strip_what_frames_or_routes() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        headers = {"Connection": "Content-Length, Host, X-Request-Id, X-Forwarded-For, Via"}
        answer = await client.ask("POST", "/x", headers, body=b"hello", mock={"echo": True})
        assert answer.body == b"hello"
        seen = up.seen[-1]
        assert seen.all("host") == [f"127.0.0.1:{up.port}"]
        assert seen.header("x-forwarded-for") == "127.0.0.1"
        assert seen.header("via") == "1.1 trimtab"
