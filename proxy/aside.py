"""Blocking work in threads that nobody waits for at the end: on files, which a network or a pipe may never give."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Aside", "Overdue"]

_T = TypeVar("_T")


class Overdue(TimeoutError):
    """Work has taken longer than it may. It goes on; `outcome` is done when it ends, None where it never began."""

    def __init__(self, text: str, outcome: asyncio.Future[object] | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


class Aside:
    """Runs blocking work of one kind for an event loop, each piece in a daemon thread of its own.

    Unlike the loop's own executor it bounds the wait, and neither the loop nor the interpreter joins its threads when
    they end: what hangs for ever keeps no process from ending. So only for work that may be lost with the process.
    """

    def __init__(self, what: str, patience_s: float | None, most_overdue: int = 1) -> None:
        """`what` names the work in errors. While `most_overdue` pieces hang, no further one is begun.

        Without a patience there is no bound; only the end of the process does not wait then.
        """
        self._what = what
        self._patience_s = patience_s
        self._most_overdue = most_overdue
        self._overdue: set[asyncio.Future[object]] = set()

    @property
    def hangs(self) -> bool:
        """Whether work that was given up is still at it."""
        return bool(self._overdue)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, or raise what it raises. Raises Overdue, an OSError, when it takes too long."""
        if len(self._overdue) >= self._most_overdue:
            raise Overdue(f"{self._what} still hangs since an earlier try")
        outcome = _begun(work, asyncio.get_running_loop(), self._what)
        await asyncio.wait((outcome,), timeout=self._patience_s)
        if outcome.done():
            return outcome.result()
        given_up: asyncio.Future[object] = outcome  # type: ignore[assignment]  # it is only read
        self._overdue.add(given_up)
        given_up.add_done_callback(self._overdue.discard)
        raise Overdue(f"{self._what} has taken more than {self._patience_s:g} s", given_up)


def _begun(work: Callable[[], _T], loop: asyncio.AbstractEventLoop, name: str) -> asyncio.Future[_T]:
    """Begin `work` in a thread; the future is done when it ends, unless the loop is closed by then."""
    outcome: asyncio.Future[_T] = loop.create_future()
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever gave up does not ask

    def settle(result: Callable[[], None]) -> None:
        if not outcome.done():
            result()

    def body() -> None:
        try:
            found = work()
        except BaseException as error:
            failure = error
            told = lambda: outcome.set_exception(failure)  # noqa: E731
        else:
            told = lambda: outcome.set_result(found)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            loop.call_soon_threadsafe(settle, told)

    threading.Thread(target=body, name=name, daemon=True).start()
    return outcome
