"""Kept connections under answers of every shape and junk behind them, without sockets: whatever may cross, would.

Real connections and exchanges, a transport and a loop that do nothing. Callers take turns at random; what each of
them sees is compared with what its own answer says.
"""

from __future__ import annotations

from random import Random
from typing import Any

from proxy.upstream.connection import Connection
from proxy.upstream.exchange import Exchange
from tests.support.answers import Planned, cut, junk, planned

__all__ = ["Crossing"]

_CALLERS = 4
_NEVER = 1e12


class _Handle:
    def cancel(self) -> None:
        """Nothing was to happen."""


class _Loop:
    def call_later(self, *_: Any) -> _Handle:
        return _Handle()


class _Transport:
    def __init__(self) -> None:
        self.closing = self.paused = False

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str) -> None:
        """There is no socket."""


class _Reader:
    """Reads a stream as it comes, and asks for a pause now and then."""

    def __init__(self, rng: Random, begun: bytes) -> None:
        self._rng = rng
        self.body = [begun]
        self.faults: list[str] = []

    def piece(self, data: bytes) -> bool:
        self.body.append(data)
        return self._rng.random() < 0.05

    def chunks(self, framed: bytes, data: bytes, now: float) -> bool:
        held = b""
        while framed:
            size, _, framed = framed.partition(b"\r\n")
            held += framed[: int(size, 16)]
            framed = framed[int(size, 16) + 2 :]
        if held != data:
            self.faults.append(f"chunks hold {held!r}, not {data!r}")
        return self.piece(data)

    def ended(self, exchange: Exchange) -> None:
        """The exchange knows."""


class _Call:
    """One exchange under way."""

    def __init__(self, connection: Connection, exchange: Exchange, plan: Planned, reads: list[bytes]) -> None:
        self.connection = connection
        self.exchange = exchange
        self.plan = plan
        self.reads = reads
        self.junk = False
        self.broken = False
        self.uploading = False
        self.reader: _Reader | None = None


class Crossing:
    """`run` has so many exchanges done; `faults` says in words what crossed, was lost or was closed without need."""

    def __init__(self, seed: int, *, callers: int = _CALLERS) -> None:
        self._rng = Random(seed)
        self._callers = callers
        self._loop: Any = _Loop()
        self._idle: list[Connection] = []
        self._calls: list[_Call] = []
        self.faults: list[str] = []
        self.done = self.junked = self.reused = 0

    def run(self, count: int) -> None:
        """Have `count` exchanges begun and ended."""
        begun, rng = 0, self._rng
        while begun < count or self._calls:
            if begun < count and (len(self._calls) < self._callers and (rng.random() < 0.3 or not self._calls)):
                self._begin(begun)
                begun += 1
            elif rng.random() < 0.01 and self._idle:
                self._disturb(rng.choice(self._idle), begun)
            else:
                self._step(rng.choice(self._calls))

    # -- what happens --------------------------------------------------------------------------------------

    def _begin(self, tag: int) -> None:
        rng = self._rng
        plan = planned(rng, tag, head_request=rng.random() < 0.1)
        wire, chance = plan.wire, rng.random()
        behind = b"" if plan.closes or chance > 0.25 else junk(rng, tag)
        # Either with the answer's last bytes, or in reads of its own.
        reads = cut(rng, wire + behind) if chance < 0.15 else cut(rng, wire) + cut(rng, behind)
        while self._idle and not self._idle[-1].usable:
            self._idle.pop()
        if self._idle:
            connection = self._idle.pop(rng.randrange(len(self._idle)))
            self.reused += 1
            if not connection.usable:
                connection = self._open()
        else:
            connection = self._open()
        exchange = Exchange(self._loop, _NEVER, _NEVER, head_request=plan.head_request, gather=rng.random() < 0.3)
        call = _Call(connection, exchange, plan, reads)
        call.junk = bool(behind)
        if rng.random() < 0.04 and not behind:
            call.broken = True
            del reads[rng.randrange(len(reads)) :]
        call.uploading = connection.uploading = rng.random() < 0.03
        exchange.send(connection, b"GET / HTTP/1.1\r\n\r\n", b"", 1e6)
        self._calls.append(call)

    def _open(self) -> Connection:
        connection = Connection(self._loop, self._idle.append, self._lost)
        connection.connection_made(_Transport())  # type: ignore[arg-type]
        return connection

    def _lost(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def _disturb(self, connection: Connection, tag: int) -> None:
        """An idle connection brings something."""
        if not connection.usable:
            return
        self.junked += 1
        for piece in cut(self._rng, junk(self._rng, tag)):
            connection.data_received(piece)
        if connection.usable:
            self.faults.append("a connection that talked while idle is kept")
        connection.connection_lost(None)

    def _step(self, call: _Call) -> None:
        rng, connection, exchange = self._rng, call.connection, call.exchange
        transport: Any = connection.transport
        if transport.paused and not exchange.ended:
            exchange.resume()
            return
        if call.reads and not exchange.ended and not transport.closing:
            connection.data_received(call.reads.pop(0))
            if exchange.streaming and not exchange.gather and call.reader is None and rng.random() < 0.7:
                call.reader = _Reader(rng, exchange.take())
                exchange.attach(call.reader)
            if exchange.ended:
                # At once, before somebody else takes the connection.
                self._end(call)
            return
        if not exchange.ended and not call.broken and rng.random() < 0.02:
            exchange.abort()
            self._end(call, checked=False)
            return
        if not exchange.ended and (call.plan.closes or call.broken):
            clean = call.plan.closes and not call.broken
            if clean or rng.random() < 0.5:
                connection.eof_received()
                connection.connection_lost(None)
            else:
                connection.connection_lost(ConnectionResetError())
            transport.closing = True
        self._end(call)

    def _end(self, call: _Call, *, checked: bool = True) -> None:
        self._calls.remove(call)
        self.done += 1
        connection, plan = call.connection, call.plan
        if checked:
            self._compare(call)
        kept = connection.usable
        # What is left is junk that arrives after the end, before anybody asks again.
        rest = call.reads if checked else []
        for piece in rest:
            if connection.usable or not connection.transport.is_closing():
                connection.data_received(piece)
        self.junked += call.junk
        if call.junk and connection.usable:
            self._fault(call, "a connection is kept though something came behind the answer")
        elif checked and kept and (not plan.keeps or call.broken or call.uploading):
            self._fault(call, "a connection is kept that must not be")
        elif checked and not kept and plan.keeps and not (call.broken or call.uploading or call.junk):
            self._fault(call, "a connection is closed for nothing")
        if not connection.usable:
            connection.connection_lost(None)
            if connection in self._idle:
                self._idle.remove(connection)

    # -- what must hold ------------------------------------------------------------------------------------

    def _compare(self, call: _Call) -> None:
        exchange, plan, reader = call.exchange, call.plan, call.reader
        body = exchange.take() if reader is None else b"".join(reader.body)
        if reader is not None and reader.faults:
            self._fault(call, reader.faults[0])
        if not exchange.ended:
            self._fault(call, "never ended")
            exchange.abort()
            return
        if exchange.error is not None:
            if not call.broken:
                self._fault(call, f"failed: {exchange.error}")
            elif not plan.body.startswith(body):
                self._fault(call, f"broke off with {body!r}")
            return
        if call.broken and not (plan.closes and plan.body.startswith(body)):
            self._fault(call, "is taken for whole though it broke off")
            return
        lines = b"".join([b"%b: %b\r\n" % field for field in plan.fields])
        seen = (exchange.status, exchange.reason, exchange.lines, body, list(exchange.trailers))
        said = (plan.status, plan.reason, lines, body if call.broken else plan.body, plan.trailers)
        if seen != said:
            self._fault(call, f"sees {seen!r} instead of {said!r}")

    def _fault(self, call: _Call, text: str) -> None:
        self.faults.append(f"exchange {self.done}, {call.plan.wire!r:.300}: {text}")
