"""Once an answer has ended, any further byte closes the upstream's connection and changes nothing that was said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random

import pytest

from tests.support.answers import Planned, cut, junk, planned
from tests.support.literal_upstream import LiteralUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient, request_bytes

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine"
EVIL = b"HTTP/1.1 404 Evil\r\nX-Evil: 1\r\nContent-Length: 4\r\n\r\nevil"
ANSWERS = {
    "length": WHOLE,
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nmine\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nmine\r\n0\r\nX-Sum: 1\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" + WHOLE,
}
JUNK = {
    "an answer": EVIL,
    "a head": EVIL[:-4],
    "half a head": EVIL[:30],
    "a letter": b"H",
    "blank lines": b"\r\n\r\n",
    "a line end": b"\n",
    "a last chunk": b"0\r\n\r\n",
    "a trailer": b"X-Evil: 1\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "a switch": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nevil",
    "NULs": b"\0\0\0",
}


@pytest.mark.parametrize("behind", JUNK)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_bytes_behind_an_answer_reach_nobody(answer: str, behind: str) -> None:
    said, evil = ANSWERS[answer], JUNK[behind]
    script: dict[str, Sequence[bytes | float]] = {
        "/same": [said + evil], "/later": [said, 0.03, evil], "/clean": [WHOLE], "/own": [said]
    }  # fmt: skip
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        own = await client.ask("GET", "/own")
        for path in ("/same", "/same", "/later", "/clean", "/later", "/same", "/clean"):
            seen = await client.ask("GET", path)
            expected = own if path != "/clean" else Answer(200, "OK", [], b"mine", True)
            assert (seen.status, seen.reason, seen.body) == (expected.status, expected.reason, expected.body)
            assert (seen.trailers, seen.complete) == (expected.trailers, True)
            assert seen.header("x-evil") is None
            await asyncio.sleep(0.06 if path == "/later" else 0)
        assert up.connections >= 6, "none of those connections is used again"


@pytest.mark.parametrize("behind", JUNK)
async def test_bytes_behind_the_answer_to_head_reach_nobody(behind: str) -> None:
    script = {"/same": [WHOLE[:-4] + JUNK[behind]], "/body": [WHOLE], "/clean": [WHOLE]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for path in ("/same", "/body", "/same"):
            assert (await client.ask("HEAD", path)).header("content-length") == "4"
            assert (await client.ask("GET", "/clean")).body == b"mine"
        assert up.connections == 4


class Turns:
    """An upstream that says to each request of each connection what is written for it, whatever comes meanwhile."""

    def __init__(self, *connections: Sequence[Sequence[bytes | float]]) -> None:
        self.left = list(connections)

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for said in self.left.pop(0):
                await reader.readuntil(b"\r\n\r\n")
                for what in said:
                    if isinstance(what, float):
                        await asyncio.sleep(what)
                    else:
                        writer.write(what)
            await reader.read()
        writer.close()


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("behind", ["an answer", "a letter", "blank lines", "an interim answer", "NULs"])
async def test_a_body_that_comes_behind_the_answer_to_head_is_nobodys_answer(behind: str, method: str) -> None:
    """Servers that are given a body for HEAD may send it, in a packet of its own."""
    late = [[WHOLE[:-4], 0.01, JUNK[behind]], [WHOLE]]
    async with Turns(late, [[WHOLE]]) as url, Stack(url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("HEAD", "/")).header("content-length") == "4"
        answer = await client.ask(method, "/")
        assert (answer.status, answer.body) == (200, b"" if method == "HEAD" else b"mine")
        await stack.settled()
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] == 0


@pytest.mark.parametrize("behind", ["a last chunk", "a trailer", "NULs"])
async def test_what_is_no_answer_on_a_kept_connection_costs_no_request_that_may_be_sent_again(behind: str) -> None:
    turns = Turns([[WHOLE], [JUNK[behind]]], [[WHOLE]])
    async with turns as url, Stack(url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            assert (await client.ask("GET", "/")).body == b"mine"
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] == 0
        assert turns.left == []


async def test_an_early_answer_to_an_upload_with_bytes_behind_it() -> None:
    script = {"/up": [WHOLE + EVIL], "/clean": [WHOLE]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack:
        for _ in range(3):
            async with RawClient(stack.port) as client:
                client.send(b"POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
                assert (await client.answer()).body == b"mine"
            async with RawClient(stack.port) as client:
                assert (await client.ask("GET", "/clean")).body == b"mine"


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 101 X\r\n\r\n", b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"]
)
async def test_a_switch_of_protocols_that_nobody_asked_for_is_no_answer(line: bytes) -> None:
    script = {"/a": [line + EVIL], "/b": [WHOLE]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", "/a")).status == 502
        assert (await client.ask("GET", "/b")).body == b"mine"


async def test_an_interim_answer_that_nobody_waits_for_is_not_taken_for_the_answer() -> None:
    pieces = [b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.01, WHOLE]
    async with LiteralUpstream({"/a": pieces}) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for method in ("GET", "POST"):
            answer = await client.ask(method, "/a")
            assert (answer.status, answer.body) == (200, b"mine")


async def test_what_comes_while_idle_is_not_the_next_ones_answer_even_where_both_are_there_at_once() -> None:
    """Once it has happened, a connection is looked at before it is used."""
    async with (
        LiteralUpstream({"/a": [WHOLE, 0.005, EVIL]}) as up,
        Stack(up.url) as stack,
        RawClient(stack.port) as client,
    ):
        for _ in range(5):
            assert (await client.ask("GET", "/a")).body == b"mine"
            await asyncio.sleep(0.02)
        assert up.connections == 5


def _same(seen: Answer, plan: Planned) -> str:
    """Say what differs between what was seen and what was said; "" for nothing."""
    fields = [(name.decode(), value.decode()) for name, value in plan.fields]
    relayed = [field for field in seen.headers if field in fields]
    trailers = tuple((name.decode(), value.decode()) for name, value in plan.trailers)
    found = (seen.status, seen.reason, relayed, seen.body, seen.complete)
    said = (plan.status, plan.reason.decode(), fields, plan.body, True)
    if found != said:
        return f"{found!r} instead of {said!r}"
    # A body that came whole and in one read may go on without the trailers only where there were none.
    return "" if seen.trailers == trailers else f"{seen.trailers!r} instead of {trailers!r}"


@pytest.mark.parametrize("seed", range(3))
async def test_random_answers_and_junk_on_kept_connections(seed: int) -> None:
    """Each caller sees what it would see on a connection of its own."""
    rng, plans, script = Random(seed), {}, {}
    for number in range(120):
        path = f"/{number}"
        plan = plans[path] = planned(rng, number, head_request=rng.random() < 0.1)
        pieces: list[bytes | float] = []
        reads = cut(rng, plan.wire)
        if not plan.closes and rng.random() < 0.4:
            behind = junk(rng, number)
            if rng.random() < 0.6:
                reads[-1] += behind
            else:
                reads += [0.002, behind]  # type: ignore[list-item]
        for read in reads:
            pieces += [read, 0.001] if rng.random() < 0.3 and len(reads) < 9 else [read]
        script[path] = [*pieces, b""] if plan.closes else pieces
    async with LiteralUpstream(script) as up, Stack(up.url) as stack:
        waiting = list(plans)

        async def caller() -> list[str]:
            wrong = []
            async with RawClient(stack.port) as client:
                while waiting:
                    path = waiting.pop()
                    method = "HEAD" if plans[path].head_request else "GET"
                    client.send(request_bytes(method, path))
                    seen = await client.answer(head_only=method == "HEAD")
                    if differs := _same(seen, plans[path]):
                        wrong.append(f"{plans[path].wire!r:.300}: {differs}")
                    # Until what comes late has come: after that it could not be told from an early answer.
                    await asyncio.sleep(0.01)
            return wrong

        wrong = await asyncio.gather(*[caller() for _ in range(3)])
        assert [fault for faults in wrong for fault in faults] == []
