"""A request that waits its turn, as the live proxy sees it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from policies.base import Job
from proxy.dispatch.queue import Drop, Waiting
from proxy.outcome import Outcome
from proxy.request import Ticket
from proxy.upstream.lease import Lease
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Call, WireFormat

__all__ = ["Answer", "MergeTurn", "SharedRun", "Turn"]


@dataclass(slots=True, init=False)
class Answer:
    """One client's whole answer, gathered or split off a merged one. Nobody changes one."""

    status: int
    reason: bytes | None
    """None for the usual phrase."""
    lines: bytes
    """End-to-end fields as lines, without framing."""
    body: bytes
    request_id_known: bool
    """Whether `lines` bring an x-request-id of the upstream's own."""

    def __init__(
        self, status: int, reason: bytes | None, lines: bytes, body: bytes, request_id_known: bool = False
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.status = status
        self.reason = reason
        self.lines = lines
        self.body = body
        self.request_id_known = request_id_known


class Turn(Waiting):
    """Waits at a gate for a lease."""

    __slots__ = ("future", "lease", "outgoing", "ticket", "why")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ticket: Ticket,
        outgoing: Outgoing,
        job: Job,
        *,
        tokens: float,
        express: bool,
        deadline: float = inf,
    ) -> None:
        super().__init__(job, tokens=tokens, klass=ticket.klass, express=express, deadline=deadline)
        self.ticket = ticket
        self.outgoing = outgoing
        self.future: asyncio.Future[None] = loop.create_future()
        self.lease: Lease | None = None
        self.why: Drop | None = None

    def dropped(self, why: Drop) -> None:
        """Wake up with a reason instead of a lease."""
        self.why = why
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits; harmless when that one was cancelled."""
        if not self.future.done():
            self.future.set_result(None)


class SharedRun(ABC):
    """An upstream call that several turns became part of."""

    __slots__ = ()

    @abstractmethod
    def member_gone(self) -> None:
        """A client left."""


class MergeTurn(Waiting):
    """Waits for its part of a merged answer; `notify` is called once, when that or a reason why not is there."""

    __slots__ = (
        "_notify",
        "answer",
        "call",
        "gone",
        "outcome",
        "outgoing",
        "run",
        "ticket",
        "told",
        "until",
        "why",
        "wire",
    )

    def __init__(
        self,
        notify: Callable[[], None],
        ticket: Ticket,
        job: Job,
        call: Call,
        outgoing: Outgoing,
        wire: WireFormat,
        *,
        until: float,
        tokens: float,
        express: bool,
        deadline: float = inf,
    ) -> None:
        super().__init__(job, items=call.items, tokens=tokens, klass=ticket.klass, express=express, deadline=deadline)
        self._notify = notify
        self.ticket = ticket
        self.call = call
        self.wire = wire
        self.until = until
        """When its answer must be complete (monotonic seconds)."""
        self.outgoing = outgoing
        self.answer: Answer | None = None
        self.outcome: Outcome | None = None
        """Why there is no answer."""
        self.why: Drop | None = None
        self.run: SharedRun | None = None
        """The upstream call it became part of."""
        self.told = False
        """Whether whoever waits for it has heard."""
        self.gone = False
        """Whether the client left; its part of the answer is for nobody."""

    def dropped(self, why: Drop) -> None:
        """End with a reason instead of an answer."""
        self.why = why
        self._settle()

    def resolve(self, answer: Answer) -> None:
        """End with an answer."""
        self.answer = answer
        self._settle()

    def fail(self, outcome: Outcome) -> None:
        """End with what went wrong."""
        if self.answer is None:
            self.outcome = outcome
            self._settle()

    @property
    def settled(self) -> bool:
        """Whether nothing more will come, or nobody is there for it."""
        return self.gone or self.answer is not None or self.outcome is not None

    def _settle(self) -> None:
        if not self.told and not self.gone:
            self.told = True
            self._notify()
