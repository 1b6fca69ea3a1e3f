"""A stream's pieces on their way to the client: framed as it wants them, held back by it, and broken off honestly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.http.response_fields import ResponseFields
from proxy.request import Ticket
from proxy.serving.relay import Framing, Relay
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.wire.base import Tap, Usage

EVENT = b"data: {}\n\n"
BROKEN = b"data: broken\n\n"


class Line(asyncio.Transport):
    """The client's connection: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[bytes] = []
        self.closed = ""

    def write(self, data: Any) -> None:
        self.out.append(bytes(data))

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "reset"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Client:
    slow = False


class Ear(Tap):
    """A tap that keeps what it is shown, and knows events by their blank line."""

    def __init__(self, out: list[bytes] | None = None) -> None:
        self.heard: list[bytes] = []
        self.written_before: list[int] = []
        self._out = out

    def feed(self, data: bytes) -> None:
        self.heard.append(data)
        if self._out is not None:
            self.written_before.append(len(self._out))

    def at_boundary(self) -> bool:
        return not self.heard or b"".join(self.heard).endswith(b"\n\n")

    def marks_end(self) -> bool:
        return True

    def finished(self) -> bool:
        return b"[DONE]" in b"".join(self.heard)

    def usage(self) -> Usage:
        return Usage()


class Scene:
    """A relay with all that it touches."""

    def __init__(self, framing: int = Framing.CHUNKED, *, marked: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.line, self.client, self.ticket, self.tap = Line(), Client(), Ticket("id", 0.0), Ear()
        self.ticket.tap = self.tap
        self.watch = Ear(self.line.out)
        self.began: list[float] = []
        self.exchange = Exchange(loop, 60.0, 1e9)
        self.relay = Relay(
            loop, self.client, self.line, framing, self.ticket, marked,
            lambda exchange: BROKEN, self.began.append, self.watch,
        )  # fmt: skip

    def end(self, error: UpstreamError | None = None) -> str:
        """Let the answer be over; return what became of the connection."""
        self.exchange.error = error
        self.relay.ended(self.exchange)
        return self.line.closed


@pytest.mark.parametrize(
    ("framing", "written"),
    [
        (Framing.CHUNKED, b"a\r\n" + EVENT + b"\r\n" + b"0\r\n\r\n"),
        (Framing.LENGTH, EVENT),
        (Framing.CLOSE, EVENT),
    ],
)
async def test_a_body_is_framed_as_the_client_is_told(framing: int, written: bytes) -> None:
    scene = Scene(framing)
    assert not scene.relay.piece(EVENT)
    assert scene.end() == ""
    assert b"".join(scene.line.out) == written
    assert scene.relay.done
    assert not scene.relay.broken


async def test_whole_chunks_go_on_as_they_came() -> None:
    scene = Scene()
    scene.relay.chunks(b"0a;own=1\r\n" + EVENT + b"\r\n", EVENT, 5.0)
    assert scene.line.out == [b"0a;own=1\r\n" + EVENT + b"\r\n"]
    assert (scene.ticket.first_byte, scene.ticket.last_byte) == (5.0, 5.0)


async def test_the_first_piece_is_told_once_and_the_last_one_counts() -> None:
    scene = Scene()
    for now in (5.0, 6.0, 7.0):
        scene.relay.chunks(b"", EVENT, now)
    assert scene.began == [5.0]
    assert (scene.ticket.first_byte, scene.ticket.last_byte) == (5.0, 7.0)


async def test_whoever_may_be_asked_for_it_at_once_reads_each_piece_before_the_client() -> None:
    scene = Scene()
    scene.relay.piece(EVENT)
    scene.relay.piece(EVENT)
    assert scene.watch.written_before == [0, 1]


async def test_usage_is_read_in_few_portions_and_completely() -> None:
    scene = Scene()
    for _ in range(10):
        scene.relay.piece(EVENT)
    assert scene.tap.heard == [EVENT * 8]
    scene.end()
    assert b"".join(scene.tap.heard) == EVENT * 10


async def test_a_slow_client_holds_the_upstream_back_until_it_reads() -> None:
    scene = Scene()
    drained = asyncio.Event()

    async def drain() -> None:
        await drained.wait()
        scene.client.slow = False

    finish = asyncio.ensure_future(scene.relay.finish(scene.exchange, drain))
    await asyncio.sleep(0)
    scene.client.slow = True
    assert scene.relay.piece(EVENT), "the upstream is to pause"
    await asyncio.sleep(0)
    assert not finish.done()
    drained.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not scene.relay.piece(EVENT), "it may go on"
    scene.end()
    await finish


@pytest.mark.parametrize(
    ("seen", "framing", "frame", "connection"),
    [
        (EVENT, Framing.CHUNKED, b"%x\r\n%b\r\n" % (len(BROKEN), BROKEN), "closed"),
        (EVENT[:5], Framing.CHUNKED, b"", "closed"),
        (b"data: [DONE]\n\n", Framing.CHUNKED, b"", "closed"),
        (EVENT, Framing.LENGTH, b"", "closed"),
        (EVENT, Framing.CLOSE, b"", "reset"),
    ],
    ids=["between events", "inside an event", "behind the end", "of known length", "that only closing ends"],
)
async def test_a_broken_body_never_ends_cleanly(seen: bytes, framing: int, frame: bytes, connection: str) -> None:
    scene = Scene(framing)
    scene.relay.piece(seen)
    written = len(scene.line.out)
    assert scene.end(UpstreamError(Failure.RESET, "gone")) == connection
    assert b"".join(scene.line.out[written:]) == frame
    assert scene.relay.broken


@pytest.mark.parametrize(("last", "broken"), [(EVENT, True), (b"data: [DONE]\n\n", False)])
async def test_a_stream_of_events_that_only_closing_ends_must_have_said_so(last: bytes, broken: bool) -> None:
    scene = Scene(Framing.CHUNKED, marked=True)
    scene.exchange.fields = ResponseFields([(b"Content-Type", b"text/event-stream")])
    scene.exchange.until_close = True
    scene.relay.piece(last)
    assert scene.end() == ("closed" if broken else "")
    assert scene.relay.broken == broken


async def test_nothing_is_written_to_a_client_that_has_left() -> None:
    scene = Scene()
    scene.line.close()
    assert not scene.relay.piece(EVENT)
    scene.end()
    assert scene.line.out == []


async def test_a_comment_may_go_between_two_events_of_a_chunked_stream_alone() -> None:
    scene = Scene()
    scene.relay.piece(EVENT)
    assert scene.relay.between_events
    scene.relay.piece(EVENT[:5])
    assert not scene.relay.between_events
    scene.relay.piece(EVENT[5:])
    scene.client.slow = True
    assert not scene.relay.between_events
    scene.client.slow = False
    scene.end()
    assert not scene.relay.between_events
