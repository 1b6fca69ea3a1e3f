"""Whole requests without a port: events go in, and what is written to either side is compared.

    play(
        Says(CLIENT, request("/v1/chat/completions", CHAT)),
        Gets(UPSTREAM, b"POST /v1/chat/completions HTTP/1.1", ..., CHAT),
        Says(UPSTREAM, answer(b"{}")),
        Gets(CLIENT, b"HTTP/1.1 200 OK", ..., b"{}"),
    )

The connections are fakes and time is virtual; all between them is the proxy itself. What is written and not compared
fails a play, and so does what is still held, leased or queued at its end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from controller.observation import Observation
from proxy.clock import LoopClock
from proxy.config.model import Config
from proxy.dispatch.pool import Pool
from proxy.http.incoming import Limits
from proxy.http.server import DataServer
from proxy.serving.handler import Handler
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable
from tests.support.proxy_stack import Counts
from tests.support.virtual_loop import VirtualLoop

__all__ = [
    "CLIENT",
    "OTHER",
    "SECOND",
    "UPSTREAM",
    "Accepts",
    "Closed",
    "Ends",
    "Event",
    "Gets",
    "Loses",
    "Passes",
    "Paused",
    "Play",
    "Reads",
    "Refuses",
    "Says",
    "Silent",
    "Slows",
    "answer",
    "chunk",
    "request",
]

CLIENT = "client"
OTHER = "other client"
UPSTREAM = "upstream"
"""The connection to the upstream that was opened first."""
SECOND = "second upstream connection"
"""The one that was opened next, whoever is behind it."""
_UPSTREAMS = (UPSTREAM, SECOND)

_OURS = re.compile(rb"(?i)(x-request-id|date|x-trimtab-queue-ms): [^\r]*\r\n")
"""Fields that say when it was, and which request."""


class Wire(asyncio.Transport):
    """One side's connection, as the proxy holds it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: Any = None
        self.written = bytearray()
        """What has been written and not been compared yet."""
        self.paused = False
        self.closing = False
        self.aborted = False
        self.lost = False

    def attach(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        if not self.lost:
            self.lost = self.closing = True
            self.protocol.connection_lost(error)

    def write(self, data: Any) -> None:
        assert not self.closing, "written to a closed connection"
        self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 4711) if name == "peername" else default


class Play:
    """A proxy between fakes. `config` is as in a configuration file; there is one upstream unless it says so.

    `run` plays events one after the other; `end` checks that nothing is left. For a `with` statement.
    """

    def __init__(self, **config: Any) -> None:
        if "pools" not in config:
            config.setdefault("health", {"interval_ms": 3_600_000})
            config.setdefault("upstreams", ["http://192.0.2.1:9000"])
            config.setdefault("setpoints", {"window_ms": 0, "max_batch_size": 64})
        self._config = Config.model_validate(config)
        self.refusing = False
        """Whether upstreams refuse connections."""
        self.counts = Counts()
        self.lifecycle = Lifecycle()
        self._wires: dict[str, Wire] = {}
        self.loop = VirtualLoop(self._dial)
        self.loop.run_until_complete(self._build())

    async def _build(self) -> None:
        clock = LoopClock(self.loop)
        self.pools = [Pool(config, clock=clock, hooks=self.counts) for config in self._config.pools]
        self.handler = Handler(RouteTable(self.pools), limits=Limits(), lifecycle=self.lifecycle)
        self.handler.service.hooks = self.counts
        self.server = DataServer(self.handler)

    async def _dial(self, factory: Callable[[], Any]) -> tuple[asyncio.Transport, Any]:
        if self.refusing:
            raise ConnectionRefusedError("refused")
        name = next(name for name in _UPSTREAMS if name not in self._wires)
        wire = self._wires[name] = Wire(self.loop)
        protocol = factory()
        wire.attach(protocol)
        return wire, protocol

    def wire(self, name: str) -> Wire:
        """Return the connection of that name; a client's is opened when it is first asked for."""
        if name not in self._wires and name not in _UPSTREAMS:
            wire = self._wires[name] = Wire(self.loop)
            wire.attach(self.server.doorstep())
        assert name in self._wires, f"nobody has opened the {name}"
        return self._wires[name]

    def run(self, events: Sequence[Event]) -> None:
        """Play them."""
        for number, event in enumerate(events):
            try:
                self.loop.run_until_complete(_run(event, self))
                self.loop.settle()
                event.check(self)
            except AssertionError as error:
                raise AssertionError(f"event {number}, {event}: {error}") from error

    def end(self) -> list[Observation]:
        """Have all clients leave; return what was observed. Raises AssertionError, too, for what nobody looked at."""
        left = {name: bytes(wire.written) for name, wire in self._wires.items() if wire.written}
        assert not left, f"nobody expected {left}"
        return self.leave()

    def leave(self) -> list[Observation]:
        """Have all clients leave; return what was observed. Raises AssertionError for what is held or under way."""
        for name, wire in self._wires.items():
            if name not in _UPSTREAMS:
                wire.lose()
        self.loop.settle()
        assert self.lifecycle.inside == 0
        assert self.handler.service.held.now == 0
        for pool in self.pools:
            stats = pool.stats()
            assert (stats["queue"]["items"], stats["inflight"], stats["leases"]) == (0, 0, 0), stats
            pool.ledger.check()
            assert all(upstream["inflight"] == 0 for upstream in stats["upstreams"]), stats
        return [obs for obs, _, _ in self.counts.finished]

    def at_rest(self, name: str) -> bool:
        """Whether nothing is asked over an upstream's connection, or it is closed, or was never opened."""
        wire = self._wires.get(name)
        return wire is None or wire.closing or bool(getattr(wire.protocol, "usable", False))

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self.pools:
            pool.abort()
        self.loop.run_until_complete(self.server.stop())
        self.loop.settle()
        self.loop.close()


async def _run(event: Event, play: Play) -> None:
    event.happen(play)


# -- events ------------------------------------------------------------------------------------------------------


class Event:
    """Something that happens, or that must have happened."""

    def happen(self, play: Play) -> None:
        """Make it happen, inside the loop."""

    def check(self, play: Play) -> None:
        """Look whether it is so, once everything has settled. Raises AssertionError."""


@dataclass(frozen=True)
class Says(Event):
    """One side sends bytes, in one read."""

    who: str
    data: bytes

    def happen(self, play: Play) -> None:
        wire = play.wire(self.who)
        assert not wire.lost, f"the {self.who} is gone"
        wire.protocol.data_received(self.data)


class Gets(Event):
    """One side has been sent just these bytes since the last time; `...` stands for any.

    Request ids, dates and times in the queue are left out of the comparison.
    """

    def __init__(self, who: str, *parts: bytes | EllipsisType) -> None:
        self.who = who
        self.parts = parts

    def __repr__(self) -> str:
        return f"Gets({self.who!r}, {self.parts!r})"

    def check(self, play: Play) -> None:
        wire = play.wire(self.who)
        got = _OURS.sub(b"", bytes(wire.written))
        assert self._matches(got), got if len(got) < 4096 else got[:2048] + b" ... " + got[-2048:]
        wire.written.clear()

    def _matches(self, got: bytes) -> bool:
        at, anything = 0, False
        for part in self.parts:
            if isinstance(part, bytes):
                found = got.find(part, at) if anything else at if got.startswith(part, at) else -1
                if part is self.parts[-1] and anything and got.endswith(part):
                    # The end, wherever else it stands.
                    found = max(found, len(got) - len(part)) if found >= 0 else found
                if found < 0:
                    return False
                at = found + len(part)
            anything = part is ...
        return anything or at == len(got)


@dataclass(frozen=True)
class Silent(Event):
    """One side has been sent nothing more."""

    who: str

    def check(self, play: Play) -> None:
        assert not play.wire(self.who).written, bytes(play.wire(self.who).written)


@dataclass(frozen=True)
class Ends(Event):
    """One side says that nothing more will come, and closes."""

    who: str

    def happen(self, play: Play) -> None:
        wire = play.wire(self.who)
        if not wire.protocol.eof_received():
            wire.close()


@dataclass(frozen=True)
class Loses(Event):
    """One side's connection breaks."""

    who: str

    def happen(self, play: Play) -> None:
        play.wire(self.who).lose(ConnectionResetError("reset"))


@dataclass(frozen=True)
class Slows(Event):
    """One side takes no more for now."""

    who: str

    def happen(self, play: Play) -> None:
        play.wire(self.who).protocol.pause_writing()


@dataclass(frozen=True)
class Reads(Event):
    """It takes more again."""

    who: str

    def happen(self, play: Play) -> None:
        play.wire(self.who).protocol.resume_writing()


@dataclass(frozen=True)
class Paused(Event):
    """Whether nothing more is taken from one side."""

    who: str
    paused: bool = True

    def check(self, play: Play) -> None:
        assert play.wire(self.who).paused == self.paused


@dataclass(frozen=True)
class Closed(Event):
    """The proxy has closed a connection: cleanly, or as if it broke."""

    who: str
    aborted: bool = False

    def check(self, play: Play) -> None:
        wire = play.wire(self.who)
        assert (wire.closing, wire.aborted) == (True, self.aborted)


@dataclass(frozen=True)
class Passes(Event):
    """Time passes."""

    seconds: float

    def check(self, play: Play) -> None:
        play.loop.pass_s(self.seconds)


@dataclass(frozen=True)
class Refuses(Event):
    """From now on upstreams accept no connection."""

    def happen(self, play: Play) -> None:
        play.refusing = True


@dataclass(frozen=True)
class Accepts(Event):
    """They do again."""

    def happen(self, play: Play) -> None:
        play.refusing = False


# -- what they say -----------------------------------------------------------------------------------------------


def request(path: str, body: bytes = b"", *lines: bytes, method: str = "POST") -> bytes:
    """Return a request with a JSON body, or with none for an empty one."""
    framing = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)] if body else []
    first = f"{method} {path} HTTP/1.1".encode()
    return b"\r\n".join([first, b"Host: proxy.test", *framing, *lines, b"", body])


def answer(body: bytes, *lines: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """Return an answer whose length is declared."""
    first = [b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*first, *lines, b"", body])


def chunk(data: bytes) -> bytes:
    """Return one chunk; the last one for nothing."""
    return b"%x\r\n%b\r\n" % (len(data), data)
