"""No fabricated success, retries only where they do no harm, stale connections invisible (T5, T8, T9, T24)."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
import json

import pytest

from controller.observation import Result
from tests.support.mock_upstream import Behaviour, MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
NO_RETRY = {"retries": {"max": 0}}


# -- cut at every byte -------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_stream_cut_at_any_byte_never_looks_complete(framing: str, reset: bool) -> None:
    whole = b"".join(chat_stream(2))
    size = len(whole) + (40 if framing == "chunked" else 0)
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY, health={"eject_after": 1000}) as stack:
        for cut in range(0, size, 7):
            mock = {"tokens": 2, "cut_at": cut, "reset": reset, "framing": framing}
            async with RawClient(stack.port) as client:
                answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock=mock)
            if framing == "close" and not reset and cut == 0:
                continue  # an empty body that closing ends is complete, as far as HTTP can tell
            if b"data: [DONE]\n\n" in answer.body and answer.complete:
                assert answer.body == whole, "the end mark is the upstream's own"
                continue
            if answer.status == 200:
                if framing == "close" and not reset and b'"delta"' not in answer.body:
                    continue  # cut inside the first event: a short text, for all that anybody can tell
                assert not answer.complete, (cut, answer)
            else:
                assert answer.status == 502, (cut, answer)
            assert b"[DONE]" not in answer.body or whole.startswith(answer.body)
        await stack.settled()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_whole_answer_cut_at_any_byte_becomes_502(reset: bool) -> None:
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY, health={"eject_after": 1000}) as stack:
        for cut in range(0, 240, 11):
            async with RawClient(stack.port) as client:
                answer = await client.ask(
                    "POST", "/v1/chat/completions", body=CHAT, mock={"cut_at": cut, "reset": reset}
                )
            assert answer.status == 502, cut
            assert answer.header("x-trimtab-reason") == "upstream_error"
            assert answer.json["error"]["code"] == "upstream_error"
        await stack.settled()
        assert {obs.result for obs, _, _ in stack.counts.finished} == {Result.FAILED}


async def test_a_broken_stream_ends_with_the_protocols_error_event_and_an_aborted_connection() -> None:
    events = chat_stream(6)
    cut = sum(len(b"%x\r\n%b\r\n" % (len(e), e)) for e in events[:3])
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": cut, "gap": 0.002}
        )
        assert not answer.complete
        assert answer.body.startswith(b"".join(events[:3]))
        rest = answer.body.removeprefix(b"".join(events[:3]))
        assert rest.startswith(b"data: ")
        assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        assert b"[DONE]" not in answer.body
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.FAILED


async def test_an_error_event_is_never_put_inside_a_half_sent_event() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": 300, "gap": 0.002}
        )
        assert not answer.complete
        assert b"".join(chat_stream(6)).startswith(answer.body)


async def test_an_error_event_is_never_put_into_a_compressed_stream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        events = chat_stream(6)
        cut = sum(len(b"%x\r\n%b\r\n" % (len(e), e)) for e in events[:3])
        mock = {"tokens": 6, "cut_at": cut, "gap": 0.002, "encoding": "gzip"}
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock=mock)
        assert not answer.complete
        assert answer.body == b"".join(events[:3])


async def test_http_1_0_readers_of_a_broken_stream_see_a_reset() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        body = json.dumps(STREAM).encode()
        client.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nHost: a\r\nContent-Type: application/json\r\n"
            b'X-Mock: {"tokens":9,"cut_at":700,"gap":0.002}\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body)
        )
        await client.head()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(client.reader.read(-1), 5)


async def test_no_retry_and_no_second_status_after_the_first_byte() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": 500, "gap": 0.002}
        )
        assert answer.status == 200
        assert len(up.seen) == 1
        await stack.settled()


@pytest.mark.parametrize(
    "mock",
    [
        {"garbage": True},
        {"body": "x", "headers": [["Content-Length", "1"], ["Content-Length", "2"]]},
        {"framing": "chunked", "headers": [["Content-Length", "5"]]},
        {"headers": [["X Bad", "1"]]},
        {"headers": [["X-Long", "v" * 300_000]]},
    ],
)
async def test_answers_that_are_no_proper_http_become_502(mock: dict[str, object]) -> None:
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY) as stack, RawClient(stack.port) as client:
        up.default = Behaviour(**mock)  # type: ignore[arg-type]
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
        assert answer.status == 502
        assert answer.header("x-trimtab-reason") == "upstream_error"
        await stack.settled()


async def test_bytes_after_an_answer_never_reach_the_next_request() -> None:
    """A server that writes more than it announced must not be able to answer the next caller."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while (await reader.read(65536)) != b"":
            served += 1
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
            )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with (
        Stack(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as stack,
        RawClient(stack.port) as client,
    ):
        for _ in range(3):
            answer = await client.ask("GET", "/x")
            assert answer.body != b"evil"
    server.close()


# -- retries (T8) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"reset_before_head": True}, {"close_before_head": True}, {"cut_at": 10}])
async def test_another_upstream_is_tried_while_nothing_has_been_sent(fault: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**fault)) as bad, MockUpstream() as good:  # type: ignore[arg-type]
        async with Stack(bad.url, good.url) as stack, RawClient(stack.port) as client:
            for _ in range(4):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(good.seen) == 4
            assert stack.counts.retries == len(bad.seen) > 0
            await stack.settled()


async def test_a_dead_upstream_is_skipped() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with MockUpstream() as good, Stack(dead, good.url) as stack, RawClient(stack.port) as client:
        for _ in range(10):
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
        await stack.settled()


async def test_nobody_there_is_502_at_once() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with Stack(dead) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
        assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
        await stack.settled()


async def test_the_retry_budget_holds_when_everything_fails() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as up:
        config = {
            "retries": {"max": 3, "budget_ratio": 0.2, "budget_min_per_s": 0.0},
            "health": {"eject_after": 1000},
        }
        async with Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            for _ in range(50):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 502
            assert len(up.seen) <= 50 * 1.2 + 1
            await stack.settled()


async def test_a_body_that_is_not_held_is_never_sent_twice() -> None:
    async with (
        MockUpstream(Behaviour(reset_before_head=True)) as bad,
        MockUpstream(Behaviour(reset_before_head=True)) as worse,
    ):
        async with Stack(bad.url, worse.url) as stack, RawClient(stack.port) as client:
            client.send(request_bytes("POST", "/up", {"Transfer-Encoding": "chunked"}))
            await asyncio.sleep(0.01)
            client.send(b"5\r\nhello\r\n0\r\n\r\n")
            assert (await client.answer()).status == 502
            assert len(bad.seen) + len(worse.seen) == 1


async def test_a_post_of_unknown_meaning_is_not_repeated() -> None:
    async with (
        MockUpstream(Behaviour(reset_before_head=True)) as bad,
        MockUpstream(Behaviour(reset_before_head=True)) as worse,
    ):
        async with Stack(bad.url, worse.url) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", "/transfer-money", body=b"1")).status == 502
            assert len(bad.seen) + len(worse.seen) == 1
            await stack.settled()


# -- overload is not death (T24) ---------------------------------------------------------------------------


async def test_503_from_one_upstream_is_answered_by_the_other() -> None:
    async with MockUpstream(Behaviour(status=503, retry_after="7")) as busy, MockUpstream() as free:
        async with Stack(busy.url, free.url) as stack, RawClient(stack.port) as client:
            for _ in range(20):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(busy.seen) <= 2, "it is left alone for as long as it asked"
            states = {u["url"]: u["state"] for u in stack.pool.stats()["upstreams"]}
            assert states[busy.url] == "overloaded"


async def test_429_of_the_only_upstream_is_relayed_with_its_retry_after() -> None:
    async with MockUpstream(Behaviour(status=429, retry_after="7")) as up:
        async with Stack(up.url) as stack, RawClient(stack.port) as client:
            for _ in range(8):
                answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
                assert (answer.status, answer.header("retry-after")) == (429, "7")
            assert stack.pool.stats()["upstreams"][0]["state"] == "overloaded"


async def test_an_upstream_that_fails_fast_gets_less() -> None:
    async with MockUpstream(Behaviour(status=500)) as failing, MockUpstream(Behaviour(delay=0.002)) as fine:
        async with Stack(failing.url, fine.url) as stack:

            async def caller() -> None:
                async with RawClient(stack.port) as client:
                    for _ in range(20):
                        await client.ask("POST", "/v1/chat/completions", body=CHAT)

            await asyncio.gather(*[caller() for _ in range(8)])
            assert len(failing.seen) < len(fine.seen) / 2
            await stack.settled()


async def test_an_upstream_is_ejected_after_failures_in_a_row_and_comes_back() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as up:
        config = {"health": {"eject_after": 3, "eject_ms": 100}, "retries": {"max": 0}}
        async with Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            for _ in range(3):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 502
            answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "no_upstream")
            assert int(answer.header("retry-after") or 0) >= 1
            assert len(up.seen) == 3
            up.default = Behaviour()
            await asyncio.sleep(0.11)
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert stack.pool.stats()["upstreams"][0]["state"] == "up"
            await stack.settled()


# -- idle connections (T9) ---------------------------------------------------------------------------------


async def test_connections_are_kept_and_reused() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(20):
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
        assert up.connections == 1


@pytest.mark.parametrize("how", [{"drop_idle": True}, {"close": True}])
async def test_a_server_that_closes_kept_connections_costs_no_request(how: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**how)) as up, Stack(up.url) as stack:  # type: ignore[arg-type]

        async def caller() -> None:
            async with RawClient(stack.port) as client:
                for _ in range(100):
                    answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
                    assert answer.status == 200, answer

        await asyncio.gather(*[caller() for _ in range(10)])
        await stack.settled()
        assert stack.counts.retries == 0, "a race with an idle timeout is nobody's failure"
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] == 0


async def test_idle_connections_are_closed_before_the_server_does() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, connections={"idle_ms": 30}) as stack,
        RawClient(stack.port) as client,
    ):
        await client.ask("GET", "/x")
        assert up.open_connections == 1
        await up.until(lambda: up.open_connections == 0)


# -- timeouts ----------------------------------------------------------------------------------------------


async def test_first_byte_timeout_is_504() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"first_byte_ms": 50}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"hang": True})
        assert (answer.status, answer.header("x-trimtab-reason")) == (504, "upstream_timeout")
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.TIMEOUT


async def test_a_pause_between_pieces_breaks_the_stream() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"between_chunks_ms": 50}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"stall_at": 500, "tokens": 9})
        assert answer.status == 200
        assert not answer.complete
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.TIMEOUT


async def test_a_steady_stream_may_take_longer_than_any_pause() -> None:
    config = {"timeouts": {"between_chunks_ms": 60, "first_byte_ms": 60}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 12, "gap": 0.02})
        assert answer.complete
        assert answer.body == b"".join(chat_stream(12))


async def test_the_total_timeout_ends_a_steady_stream() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"total_ms": 120}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 500, "gap": 0.01})
        assert not answer.complete
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()


async def test_the_callers_own_timeout_covers_queue_and_service() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"X-Trimtab-Timeout-Ms": "60"}, body=CHAT, mock={"hang": True}
        )
        assert (answer.status, answer.header("x-trimtab-reason")) == (504, "upstream_timeout")
        await stack.settled()


async def test_connect_timeout_is_504_and_names_itself() -> None:
    # A listener whose backlog is full never completes a handshake.
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    port = listener.getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}", timeouts={"connect_ms": 80}, **NO_RETRY) as stack:
        async with RawClient(stack.port) as client:
            answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
            assert answer.status == 504
            assert "connect_timeout" in answer.json["error"]["message"]
            await stack.settled()
    for sock in (*fillers, listener):
        sock.close()
