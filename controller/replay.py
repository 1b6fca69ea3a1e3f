"""A journal played again: a fresh controller is asked the same questions, and every answer is compared.

`trimtab simulate --replay FILE` does it for the journal of a live proxy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.decision import Decision
from controller.journal import comparable, decode
from controller.loop import PoolController

__all__ = ["JournalError", "Replayed", "replay"]

_CALLS: Final = frozenset(
    {
        "admit", "choose", "first_token", "freeze", "gone", "note", "observe", "pin", "roll_back", "sent", "set_law",
        "set_shadow", "set_slo", "start_experiment", "stop_experiment", "tick", "unpin",
    }
)  # fmt: skip


class JournalError(ValueError):
    """A line of a journal cannot be understood. The text names it."""


@dataclass
class Replayed:
    """What became of one pool's journal."""

    controller: PoolController
    calls: Counter[str] = field(default_factory=Counter)
    different: list[tuple[int, str, Any, Any]] = field(default_factory=list)
    """(line, call, answer then, answer now) of every answer that was another one; empty when all agree."""

    @property
    def decisions(self) -> Sequence[Decision]:
        """The decisions that are still kept."""
        return self.controller.decisions.since(0)


def replay(lines: Iterable[str]) -> dict[str, Replayed]:
    """Ask fresh controllers everything that the journal's were asked, by pool.

    A pool that begins again (the proxy was restarted) goes on with a new controller; its counts go on. Raises
    JournalError for a line that is none of a journal; a last line that was cut off is left out.
    """
    found: dict[str, Replayed] = {}
    broken: str | None = None
    for number, line in enumerate(lines, start=1):
        if broken is not None:
            raise JournalError(broken)
        try:
            entry = json.loads(line)
            _again(found, entry["pool"], entry, number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            broken = f"line {number} is not of a journal: {error!r}"
    if broken is not None and not found:
        raise JournalError(broken)
    return found


def _again(found: dict[str, Replayed], pool: str, entry: Mapping[str, Any], number: int) -> None:
    call, args = entry["call"], decode(entry["args"])
    if call == "begin":
        controller = PoolController(pool, wall=lambda: 0.0, **args)
        if pool in found:
            found[pool].controller = controller
        else:
            found[pool] = Replayed(controller)
        return
    if call not in _CALLS:
        raise ValueError(f"no controller is asked for {call!r}")
    replayed = found[pool]
    result = getattr(replayed.controller, call)(*args, **entry.get("named", {}))
    replayed.calls[call] += 1
    then, now = entry.get("answer"), None if result is None else json.loads(json.dumps(comparable(result)))
    if then != now:
        replayed.different.append((number, call, then, now))
