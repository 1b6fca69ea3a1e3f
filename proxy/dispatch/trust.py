"""Which operations may be merged at upstreams that nobody has named, and which no longer where they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from proxy.wire.base import Call, WireFormat

__all__ = ["MergeTrust", "Note"]

log = logging.getLogger("trimtab.proxy")

Note = Callable[[str, Mapping[str, Any], Mapping[str, Any], str], None]
"""Keeps a decision: its rule, what was before, what is now, and why."""

_KEPT: Final = 64
"""So many operations (by path) are remembered of a pool: callers choose paths."""
_MISMATCHES: Final = 3
"""After so many merged answers in a row that could not be divided, nothing is merged there for a while."""
_OFF_S: Final = 60.0
_LONGEST_OFF_S: Final = 3600.0
_DIFFERED_OFF_S: Final = 3600.0
_LONGEST_DIFFERED_OFF_S: Final = 86_400.0
_LOOK_AGAIN_S: Final = 0.1
_LONGEST_LOOK_S: Final = 60.0


class _Standing:
    """What is known of one operation at one path."""

    __slots__ = ("look_at", "looks", "mismatches", "off_for", "off_until", "speakers", "told_at")

    def __init__(self) -> None:
        self.speakers: set[str] = set()
        """Upstreams that answered it in the shape that only its protocol has."""
        self.looks = 0
        self.look_at = 0.0
        """When another answer is looked at, where none has shown that so far."""
        self.mismatches = 0
        """Merged answers in a row that could not be divided."""
        self.off_until = 0.0
        self.off_for = 0.0
        self.told_at = -_DIFFERED_OFF_S


class MergeTrust:
    """Keeps, for each operation of a pool, whether its requests may share calls where nobody said so.

    An operation that its protocol defines as a list of independent items is merged once every upstream has been
    recognised by an answer of its own; what cannot be divided, or was not the same alone, is left alone for a time
    that doubles. Times are monotonic seconds and come in as arguments.
    """

    __slots__ = ("_known", "_note", "_upstreams", "doubting")

    def __init__(self, upstreams: Iterable[str], note: Note) -> None:
        self._upstreams = frozenset(upstreams)
        self._known: dict[tuple[str, str], _Standing] = {}
        self._note = note
        self.doubting = False
        """Whether some operation may be left alone although it was vouched for."""

    def merges(self, route: str, target: str, now: float, *, vouched: bool) -> bool:
        """Whether requests of `route` to `target` share calls; `vouched` where the operator or a profile says so."""
        standing = self._known.get((route, _path(target)))
        if standing is None:
            return vouched
        return now >= standing.off_until and (vouched or len(standing.speakers) == len(self._upstreams))

    def looked_at(
        self,
        upstream: str,
        target: str,
        wire: WireFormat,
        call: Call,
        body: bytes,
        fields: Sequence[tuple[bytes, bytes]],
        now: float,
    ) -> None:
        """Take a good answer to a request that went alone, and see whether only its protocol's servers answer so."""
        if upstream not in self._upstreams:
            return
        standing = self._standing(call.route.name, target)
        if upstream in standing.speakers or now < standing.look_at:
            return
        if not wire.recognises(call, body, fields):
            standing.look_at = now + min(_LONGEST_LOOK_S, _LOOK_AGAIN_S * 2.0 ** min(standing.looks, 16))
            standing.looks += 1
            return
        standing.speakers.add(upstream)
        if len(standing.speakers) == len(self._upstreams):
            self._say(
                "merge.recognised", call.route.name, target, "alone", "merged",
                f"Every upstream answers {_path(target)} as {wire.name} servers do, so its requests may share calls.",
            )  # fmt: skip

    def divided(self, route: str, target: str) -> None:
        """A merged answer was divided. To be told only while `doubting`."""
        standing = self._known.get((route, _path(target)))
        if standing is not None and standing.mismatches:
            standing.mismatches = 0
            if standing.off_for:
                standing.off_for = 0.0
                text = f"Merged answers of {_path(target)} can be divided again."
                self._say("merge.divided_again", route, target, "alone", "merged", text)
        self.doubting = any(standing.mismatches or standing.off_for for standing in self._known.values())

    def undivided(self, upstream: str, route: str, target: str, why: str, now: float) -> None:
        """A merged answer could not be divided, and its requests were sent one by one."""
        standing = self._standing(route, target)
        self.doubting = True
        standing.mismatches += 1
        if standing.mismatches < _MISMATCHES or now < standing.off_until:
            return
        # One more after the pause, and it begins again.
        standing.mismatches = _MISMATCHES - 1
        seconds = self._pause(standing, now, _OFF_S, _LONGEST_OFF_S)
        self._say(
            "merge.undivided", route, target, "merged", "alone",
            f"{upstream} answers merged calls of {_path(target)} with what cannot be divided ({why}): "
            f"its requests go one by one for {seconds:g} s.",
        )  # fmt: skip

    def differed(self, upstream: str, route: str, target: str, now: float, *, vouched: bool) -> None:
        """A request that was asked again alone got another answer than in company."""
        standing = self._standing(route, target)
        found = f"{upstream} answered a request to {_path(target)} otherwise in company than alone"
        if vouched:
            if now - standing.told_at >= _DIFFERED_OFF_S:
                standing.told_at = now
                text = f"{found}; calls are merged all the same, as configured."
                self._say("merge.differs", route, target, "merged", "merged", text)
            return
        self.doubting = True
        seconds = self._pause(standing, now, _DIFFERED_OFF_S, _LONGEST_DIFFERED_OFF_S)
        text = f"{found}: its requests go one by one for {seconds:g} s."
        self._say("merge.differs", route, target, "merged", "alone", text)

    def _pause(self, standing: _Standing, now: float, first_s: float, longest_s: float) -> float:
        standing.off_for = min(longest_s, max(first_s, 2.0 * standing.off_for))
        standing.off_until = now + standing.off_for
        return standing.off_for

    def _standing(self, route: str, target: str) -> _Standing:
        key = (route, _path(target))
        standing = self._known.get(key)
        if standing is None:
            if len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            standing = self._known[key] = _Standing()
        return standing

    def _say(self, rule: str, route: str, target: str, before: str, after: str, text: str) -> None:
        about = {"route": route, "path": _path(target)}
        self._note(rule, {**about, "dispatch": before}, {**about, "dispatch": after}, text)
        log.log(logging.INFO if after == "merged" else logging.WARNING, "%s", text)


def _path(target: str) -> str:
    return target.partition("?")[0][:200]
