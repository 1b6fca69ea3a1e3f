"""Byte-exact in both directions: bodies, statuses, headers, framing (T1 to T4)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import zlib
from typing import Any

import pytest

from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/anything/else"])
async def test_random_bodies_pass_unchanged_both_ways(path: str) -> None:
    rng = random.Random(7)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for size in (0, 1, 17, 4096, 65_535, 65_536, 300_000, 3_000_000):
            body = rng.randbytes(size) if path == "/anything/else" else _json_of(rng, size)
            answer = await client.ask("POST", path, body=body, mock={"echo": True})
            assert answer.status == 200
            assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest(), size
            assert up.seen[-1].body == body
        await stack.settled()


def _json_of(rng: random.Random, size: int) -> bytes:
    filling = "".join(rng.choice("aé漢🙂 ") for _ in range(max(0, size // 3)))
    return (f'{{ "model":"m" ,"messages":[{{"content":"{filling}"}}], "unknown" : 1e2}}').encode()


async def test_unknown_fields_spelling_and_key_order_survive() -> None:
    body = b'{"zz": 1,\n "model" : "m", "messages":[], "x_unknown": {"b":1, "a":2.50}, "top_p":1.0}'
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("POST", "/v1/chat/completions", body=body)
        assert up.seen[-1].body == body


@pytest.mark.parametrize("gap", [0.0, 0.003])
async def test_a_stream_passes_unchanged_whatever_its_pieces(gap: float) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock={"tokens": 12, "gap": gap}
        )
        assert answer.complete
        assert answer.body == b"".join(chat_stream(12))
        assert answer.header("content-length") is None
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        await stack.settled()
        obs = stack.counts.finished[-1][0]
        assert obs.streamed
        assert obs.output_tokens == 12


async def test_every_split_of_a_stream_gives_the_same_bytes_and_the_same_counts() -> None:
    """The recorded stream holds umlauts, CJK and emoji; every place a read can end at is tried."""
    wire = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_stream(2, usage=True)) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    split = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(request) - request.index(b"\r\n\r\n") - 4)
                writer.write(head + wire[:split])
                await asyncio.sleep(0.0005)
                writer.write(wire[split:])
        except asyncio.IncompleteReadError:
            writer.close()

    request = request_bytes("POST", "/v1/chat/completions", body={**CHAT, "stream": True})
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
        for split in range(len(wire)):
            client.send(request)
            answer = await client.answer()
            assert answer.body == b"".join(chat_stream(2, usage=True)), split
            obs = stack.counts.finished[-1][0]
            assert (obs.prompt_tokens, obs.output_tokens) == (7, 2), split
        await stack.settled()
    server.close()


@pytest.mark.parametrize("status", [200, 201, 202, 301, 400, 404, 418, 429, 500, 501])
async def test_status_and_body_are_the_upstreams_own(status: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"status": status, "body": "{}"})
        assert (answer.status, answer.body) == (status, b"{}")


async def test_reason_phrases_and_unknown_statuses_survive() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"status": 299})
        assert (answer.status, answer.reason) == (299, "Mock")


@pytest.mark.parametrize("reason", ["", "Fine", "OK"])
async def test_a_reason_phrase_is_the_upstreams_own_even_when_it_is_empty(reason: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"reason": reason, "body": "{}"})
        assert (answer.status, answer.reason) == (200, reason)


async def test_non_sse_error_to_a_streaming_request_is_relayed_verbatim() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST",
            "/v1/chat/completions",
            body={**CHAT, "stream": True},
            mock={"status": 422, "body": '{"detail":"no"}'},
        )
        assert (answer.status, answer.body) == (422, b'{"detail":"no"}')
        assert answer.header("content-type") == "application/json"


async def test_unterminated_tail_of_a_stream_is_flushed() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock={"body": "data: x"}
        )
        assert answer.body == b"data: x"


# -- headers (T2) ------------------------------------------------------------------------------------------

HOP_BY_HOP = {
    "Connection": "close, X-Named",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "Proxy-Authorization": "Basic c2VjcmV0",
    "TE": "trailers",
    "Trailer": "X-T",
    "X-Named": "1",
}


async def test_hop_by_hop_fields_do_not_reach_the_upstream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {**HOP_BY_HOP, "X-Kept": "yes"})
        seen = up.seen[-1]
        for name in HOP_BY_HOP:
            # Trailers are passed on, so they may be asked for anew.
            expected = {"TE": "trailers", "Connection": "TE"}.get(name)
            assert seen.header(name) == expected, name
        assert seen.header("x-kept") == "yes"


async def test_hop_by_hop_fields_do_not_reach_the_client() -> None:
    headers = [["Connection", "X-Named"], ["Keep-Alive", "timeout=9"], ["X-Named", "1"], ["X-Kept", "yes"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"headers": headers})
        for name in ("connection", "keep-alive", "x-named"):
            assert answer.header(name) is None, name
        assert answer.header("x-kept") == "yes"


async def test_duplicate_fields_keep_their_number_order_and_spelling() -> None:
    headers = [["Set-Cookie", "a=1"], ["sEt-CooKie", "b=2"], ["X-Multi", "1"], ["X-Multi", "2"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", [("X-Up", "1"), ("x-up", "2")], mock={"headers": headers})
        assert [h for h in answer.headers if h[0].lower() == "set-cookie"] == [
            ("Set-Cookie", "a=1"),
            ("sEt-CooKie", "b=2"),
        ]
        assert answer.all("x-multi") == ["1", "2"]
        assert [h for h in up.seen[-1].headers if h[0].lower() == "x-up"] == [("X-Up", "1"), ("x-up", "2")]


async def test_host_is_the_upstreams_and_the_original_is_passed_on() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {"Host": "api.example:8443", "X-Forwarded-For": "10.0.0.9", "Via": "1.0 front"})
        seen = up.seen[-1]
        assert seen.all("host") == [f"127.0.0.1:{up.port}"]
        assert seen.all("x-forwarded-host") == ["api.example:8443"]
        assert seen.all("x-forwarded-for") == ["10.0.0.9, 127.0.0.1"]
        assert seen.all("x-forwarded-proto") == ["http"]
        assert seen.all("via") == ["1.0 front, 1.1 trimtab"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123", True), ("a" * 128, True), ("a" * 129, False), ("bad id", False), ("", False), ('x"y', False)],
)
async def test_request_id_is_kept_or_made_and_told_to_both_sides(given: str, kept: bool) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", {"X-Request-Id": given})
        told = answer.header("x-request-id")
        assert told
        assert (told == given) is kept
        assert up.seen[-1].all("x-request-id") == [told]


async def test_internal_headers_from_clients_are_not_forwarded() -> None:
    headers = {"X-Trimtab-Predicted-Tokens": "1", "x-trimtab-class": "batch", "X-TRIMTAB-SECRET": "s"}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", headers)
        assert not [name for name, _ in up.seen[-1].headers if name.lower().startswith("x-trimtab")]


async def test_credentials_are_passed_or_replaced_never_doubled_or_empty() -> None:
    async with MockUpstream() as up:
        async with Stack(up.url) as stack, RawClient(stack.port) as client:
            await client.ask("GET", "/x", {"Authorization": "Bearer mine"})
            assert up.seen[-1].all("authorization") == ["Bearer mine"]
            await client.ask("GET", "/x")
            assert up.seen[-1].all("authorization") == []
        own: dict[str, Any] = {"upstreams": [{"url": up.url, "api_key": "k-upstream"}]}
        async with Stack(**own) as stack, RawClient(stack.port) as client:
            await client.ask("GET", "/x", {"Authorization": "Bearer mine"})
            assert up.seen[-1].all("authorization") == ["Bearer k-upstream"]


async def test_traceparent_and_other_unknown_fields_pass() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {"traceparent": "00-ab-cd-01", "OpenAI-Organization": "org", "Cookie": "a=b"})
        seen = up.seen[-1]
        assert (seen.header("traceparent"), seen.header("openai-organization"), seen.header("cookie")) == (
            "00-ab-cd-01",
            "org",
            "a=b",
        )


# -- framing (T3) ------------------------------------------------------------------------------------------


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


async def test_ranges_and_conditional_requests_pass() -> None:
    headers = [["Content-Range", "bytes 0-4/100"], ["ETag", '"x"']]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "GET", "/f", {"Range": "bytes=0-4", "If-None-Match": '"y"'},
            mock={"status": 206, "body": "12345", "headers": headers},
        )  # fmt: skip
        assert (answer.status, answer.header("content-range"), answer.header("etag")) == (206, "bytes 0-4/100", '"x"')
        assert up.seen[-1].header("range") == "bytes=0-4"
        assert up.seen[-1].header("if-none-match") == '"y"'


async def test_trailers_pass() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for gap in (0.0, 0.005):
            mock = {"tokens": 3, "gap": gap, "trailers": [["X-Checksum", "abc"]]}
            answer = await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock=mock)
            assert answer.trailers == (("X-Checksum", "abc"),)


async def test_trailers_of_an_answer_that_would_mislead_are_dropped() -> None:
    trailers = [["Host", "evil"], ["X-Sum", "1"], ["Set-Cookie", "a=b"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for gap in (0.0, 0.005):
            mock = {"tokens": 3, "gap": gap, "trailers": trailers}
            answer = await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock=mock)
            assert answer.trailers == (("X-Sum", "1"),)


TRAILED = (
    b"POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Trailer: X-Sum, X-More\r\nTE: trailers\r\n\r\n"
)
TRAILED_BODY = (
    b"5\r\nhello\r\n3;x=y\r\n\r\n0\r\n0\r\nX-Sum: abc\r\n"
    b"Authorization: evil\r\nx-trimtab-class: top\r\nX-More: \r\n\r\n"
)


@pytest.mark.parametrize("split", [0, 1, 4, 9, 12, 22, 30, 45, 60, 75])
async def test_trailers_of_an_upload_reach_the_upstream_however_they_are_cut(split: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            client.send(TRAILED + TRAILED_BODY[:split])
            if split:
                await asyncio.sleep(0.002)
            client.send(TRAILED_BODY[split:])
            assert (await client.answer()).status == 200
            seen = up.seen[-1]
            assert seen.body == b"hello\r\n0"
            assert seen.trailers == [("X-Sum", "abc"), ("X-More", "")], "and none that frames or routes"
            assert seen.header("trailer") == "X-Sum, X-More"
            assert (seen.header("te"), seen.header("connection")) == ("trailers", "TE")
            assert (await client.ask("GET", "/y")).body == b"GET /y"


async def test_trailers_that_were_not_announced_are_dropped() -> None:
    head = TRAILED.replace(b"Trailer: X-Sum, X-More\r\n", b"")
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(head + TRAILED_BODY)
        assert (await client.answer()).status == 200
        assert (up.seen[-1].body, up.seen[-1].trailers) == (b"hello\r\n0", [])


async def test_query_and_escapes_reach_the_upstream_as_written() -> None:
    target = "/a%2Fb/c%20d;p=1/..%2f?x=%41&y=a+b&z"
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", target)
        assert up.seen[-1].target == target


async def test_a_path_in_the_base_url_is_put_before_the_requests_own() -> None:
    async with MockUpstream() as up, Stack(up.url + "/base") as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/v1/models")
        assert up.seen[-1].target == "/base/v1/models"


# -- compression (T4) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_compressed_answers_stay_labelled_and_undecoded(coding: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"Accept-Encoding": coding}, body=CHAT,
            mock={"body": "\x1f\x08 opaque", "encoding": coding},
        )  # fmt: skip
        assert answer.header("content-encoding") == coding
        assert answer.body == b"\x1f\x08 opaque"
        assert up.seen[-1].header("accept-encoding") == coding


async def test_compressed_requests_pass_undecoded() -> None:
    body = zlib.compress(b'{"model":"m","messages":[]}')
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/other", {"Content-Encoding": "deflate"}, body=body, mock={"echo": True})
        assert answer.body == body
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"Content-Encoding": "deflate"}, body=body, mock={"echo": True}
        )
        assert (answer.status, answer.body) == (200, body)
        assert up.seen[-1].header("content-encoding") == "deflate"


# -- uploads -----------------------------------------------------------------------------------------------


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


async def test_interim_answers_do_not_confuse_anybody() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"interim": 103, "body": "fine"})
        assert (answer.status, answer.body) == (200, b"fine")
