"""Whether those who were let in lately had time to spare, and whether those who seemed late were."""

from __future__ import annotations

from collections import deque
from typing import Final

from controller.observation import Observation, Result
from controller.slo import SLO

__all__ = ["Room", "TrackRecord", "used_share"]

_LATELY: Final = 100
_HALF: Final = 0.5
_TIMEOUT: Final = Result.TIMEOUT
_UNFORESEEN: Final = 0.1
"""Part of the admitted that may have used more than half: an engine that pauses, or a prompt far longer than others,
delays a few whatever the load is."""
_JUDGED: Final = 20
_LEAST: Final = 5
_RIGHT: Final = 0.1
"""Part of those predicted late that must have been late, for the prediction to be worth anything."""
_FRESH_S: Final = 60.0
_TRIAL_S: Final = 2.0
_LONGEST_TRIAL_S: Final = 32.0


class Room:
    """Who was admitted lately, and how many of them used more than half of their time.

    While nine tenths of the last hundred used less than half of it, a queue that is empty is no place to refuse
    anybody from, whatever a model predicts.
    """

    __slots__ = ("_tight", "_used")

    def __init__(self) -> None:
        self._used: deque[bool] = deque(maxlen=_LATELY)
        self._tight = 0

    def add(self, used: float) -> None:
        """Take in one who was admitted and used this share of its time."""
        kept = self._used
        if len(kept) == _LATELY:
            self._tight -= kept[0]
        tight = used > _HALF
        kept.append(tight)
        self._tight += tight

    @property
    def ample(self) -> bool:
        """Whether those admitted lately had time to spare."""
        return self._tight <= _UNFORESEEN * len(self._used)

    def as_dict(self) -> dict[str, float | bool]:
        """Return what the admin API shows."""
        return {"of_last": len(self._used), "over_half": self._tight, "ample": self.ample}


class TrackRecord:
    """What became of those who were let in although they were predicted to be late.

    A refusal teaches nothing, so a few are let in to see, while nothing waits: one each two seconds, half as often
    each time that the prediction was right. Where nine tenths of the last twenty were in time after all, the
    prediction decides nothing.
    """

    __slots__ = ("_every_s", "_open", "_seen", "_tried", "false_alarms")

    def __init__(self) -> None:
        self._open: dict[float, float] = {}
        """By when they arrived: when they were let in."""
        self._seen: deque[tuple[float, bool]] = deque(maxlen=_JUDGED)
        self._tried = float("-inf")
        self._every_s = _TRIAL_S
        self.false_alarms = 0
        """Those predicted to be late who were in time, so far."""

    def due(self, now: float) -> bool:
        """Whether to let one in to see."""
        return now - self._tried >= self._every_s

    def admitted(self, arrival: float, now: float, *, trial: bool = False) -> None:
        """Take note of one who was let in although it was predicted to be late."""
        if trial:
            self._tried = now
        self._open[arrival] = now
        if len(self._open) > 1024:
            del self._open[next(iter(self._open))]

    def ended(self, arrival: float, done: float, on_time: bool | None) -> None:
        """Take note of what became of a request; None when it says nothing."""
        if not self._open or self._open.pop(arrival, None) is None or on_time is None:
            return
        self._seen.append((done, on_time))
        self.false_alarms += on_time
        self._every_s = _TRIAL_S if on_time else min(_LONGEST_TRIAL_S, 2.0 * self._every_s)

    def disproved(self, now: float) -> bool:
        """Whether predictions of lateness have lately been wrong nearly always."""
        seen = self._seen
        if len(seen) < _LEAST or now - seen[-1][0] > _FRESH_S:
            return False
        return sum([not on_time for _, on_time in seen]) < _RIGHT * len(seen)

    @property
    def waiting(self) -> bool:
        """Whether anybody's fate is still to be seen."""
        return len(self._open) > 0

    def as_dict(self) -> dict[str, int]:
        """Return what the admin API shows."""
        late = sum([not on_time for _, on_time in self._seen])
        return {"predicted_late": len(self._seen), "were_late": late, "false_alarms": self.false_alarms}


def used_share(obs: Observation, slo: SLO, *, first_told: bool) -> float:
    """Return which part of its time an admitted request used, of the promise it came closest to; -1 without one.

    What its pace did is nothing that admission could have foreseen, and no part of this. With `first_told` its first
    token has been counted when it came.
    """
    if obs.result is _TIMEOUT:
        return float("inf")
    used = -1.0
    if slo.e2e_s is not None:
        used = (obs.done - obs.arrival) / slo.e2e_s
    if slo.ttft_s is not None and not first_told and obs.streamed and (first := obs.first_byte) is not None:
        share = (first - obs.arrival) / slo.ttft_s
        used = share if share > used else used
    if slo.queue_s is not None and obs.dispatched is not None:
        share = (obs.dispatched - obs.arrival) / slo.queue_s
        used = share if share > used else used
    return used
