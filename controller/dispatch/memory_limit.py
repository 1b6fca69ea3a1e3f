"""How many tokens an engine can hold at once, learned from when it makes requests wait."""

from __future__ import annotations

import math

__all__ = ["MemoryLimit"]

_STEP = math.log(1.05)
_DECAY = 0.998
_ENOUGH = 2.5
_CLEAN_RUN = 20
_MOST_PATIENCE = 1280
_MARGIN = 0.9


class MemoryLimit:
    """The largest load in tokens (prompts plus expected outputs in flight) at which the engine did not make wait.

    An engine whose KV cache is full lets newcomers wait, and throws out the newest to go on: throughput falls by a
    third, all at once. The number of sequences at which that happens depends on their lengths; the number of tokens
    does not. So for each request the tokens in flight at its dispatch are noted, in steps of 5 %, with whether it
    had to wait, and the limit lies just below the step that best parts those who had to from those who had not. As
    that is forgotten (half of it in 350 requests) while the limit binds, the limit creeps up by 5 % and is found
    again. Twenty requests without a wait let it creep, too; each time that was wrong it takes twice as many.
    """

    __slots__ = ("_clean_run", "_crept", "_jammed", "_patience", "_seen", "limit_tokens")

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._jammed: dict[int, float] = {}
        self._clean_run = 0
        self._patience = _CLEAN_RUN
        self._crept = False
        self.limit_tokens: float | None = None
        """None while the engine never made anybody wait."""

    def observe(self, tokens: float, waited: bool) -> None:
        """Take in one request: the tokens in flight when it was dispatched, itself included."""
        if tokens <= 0.0:
            return
        step = int(math.log(tokens) / _STEP)
        self._clean_run = 0 if waited else self._clean_run + 1
        for index in self._seen:
            self._seen[index] *= _DECAY
            self._jammed[index] *= _DECAY
        self._seen[step] = self._seen.get(step, 0.0) + 1.0
        self._jammed[step] = self._jammed.get(step, 0.0) + waited

    def retune(self, binding: bool) -> None:
        """Move the limit; call once a tick. `binding` says whether it held somebody back since the last one."""
        if binding and self.limit_tokens is not None and self._clean_run >= self._patience:
            self._clean_run = 0
            self._crept = True
            self.limit_tokens *= 1.08
            floor = int(math.log(self.limit_tokens) / _STEP)
            for index in self._jammed:
                if index <= floor + 1:
                    self._jammed[index] *= 0.3
            return
        found = self._parting()
        if found is not None:
            limit = _MARGIN * math.exp(found * _STEP)
            if self._crept and self.limit_tokens is not None and limit < self.limit_tokens:
                self._crept = False
                self._patience = min(_MOST_PATIENCE, 2 * self._patience)
            self.limit_tokens = limit
        elif self.limit_tokens is not None and binding:
            self.limit_tokens *= 1.05

    def _parting(self) -> int | None:
        """Return the step that best parts those who had to wait from those who had not; None when nothing does.

        A decision stump: among all steps the one with the least (waited below it) + (did not wait from it on) / 3,
        if that is better than no limit at all, and enough had to wait above it.
        """
        clean_above = jammed_above = 0.0
        jammed_total = sum(self._jammed.values())
        best_cost, best = jammed_total - 1e-9, None
        for step in sorted(self._seen, reverse=True):
            jammed_above += self._jammed[step]
            clean_above += self._seen[step] - self._jammed[step]
            cost = (jammed_total - jammed_above) + clean_above / 3.0
            if jammed_above >= _ENOUGH and cost < best_cost:
                best_cost, best = cost, step
        return best
