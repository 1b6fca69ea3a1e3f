"""What is known against upstreams beyond their health: who fails fast, and who alone turns something away.

Whoever fails fast has the least outstanding and looks like the best choice, whatever the routing strategy. So it is
passed over, and looked at again once in a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from math import inf
from typing import Final

from proxy.upstream.endpoint import Endpoint

__all__ = ["Repute"]

_FAILING: Final = 0.3
"""Share of failures from which on an upstream is passed over, where another fails half as often at most."""
_FADE_S: Final = 10.0
"""In so many seconds half of a low failure rate is forgotten, as nobody may ask there to refute it."""
_FIRST_LOOK_S: Final = 2.0
_LONGEST_LOOK_S: Final = 20.0
_SHUN_S: Final = 10.0
_LONGEST_SHUN_S: Final = 300.0
_RETRIAL_S: Final = 1.0
_MAX_ERRANDS: Final = 1024
"""Errands are told apart by what callers write, so they are forgotten, the oldest first."""


class _Look:
    """When a failing upstream is looked at again."""

    __slots__ = ("asked_at", "due", "gap_s")

    def __init__(self, now: float) -> None:
        self.asked_at = now
        """Only what was sent since then says anything about the latest look."""
        self.gap_s = _FIRST_LOOK_S
        self.due = now + _FIRST_LOOK_S


class _Refusals:
    """How often in a row an upstream turned away what another one served, and until when it is spared that."""

    __slots__ = ("count", "until")

    def __init__(self) -> None:
        self.count = 0
        self.until = 0.0


class Repute:
    """Says which upstreams to pass over. Time is an argument.

    An upstream is a misfit for an errand (route, model, credential) only after another one has served the very
    request that it answered with 401, 403, 404 or 405. What all turn away is the client's mistake and nobody's
    fault. As the errand holds what the client chose, a client with a wrong key or model name moves nobody's traffic
    but its own.
    """

    __slots__ = ("_errands", "_faded_at", "_looks")

    def __init__(self) -> None:
        self._looks: dict[Endpoint, _Look] = {}
        self._errands: OrderedDict[Hashable, dict[Endpoint, _Refusals]] = OrderedDict()
        self._faded_at = 0.0

    def __len__(self) -> int:
        """Return how many errands are remembered."""
        return len(self._errands)

    @property
    def knows_misfits(self) -> bool:
        """Whether any errand is remembered, so that it is worth telling which one a request is."""
        return bool(self._errands)

    def avoid(
        self,
        endpoints: Sequence[Endpoint],
        errand: Hashable | None,
        now: float,
        tried: Collection[Endpoint] = (),
        *,
        homed: bool = False,
    ) -> tuple[Endpoint, ...]:
        """Return whom to pass over for a request; nobody, where that would leave none that may be asked.

        Whoever is due to be looked at again is left alone in its turn: then all others are passed over. What is
        `homed` leaves its upstream only while that is away, so one that is due is not passed over by it, no more:
        `asked` says who got it.
        """
        blemished = [each for each in endpoints if each.failure_rate > 0.0]
        if not blemished and not self._errands:
            return ()
        failing = _failing(blemished, now, len(endpoints))
        if now - self._faded_at >= 1.0:
            self._fade(blemished, now)
        if len(self._looks) > len(failing):
            for each in [each for each in self._looks if each not in failing]:
                del self._looks[each]
        misfits = self._misfits(errand, now) if errand is not None and self._errands else None
        if not failing and not misfits:
            return ()
        shunned = [] if misfits is None else misfits
        fine = [each for each in endpoints if each not in shunned and each.available(now)]
        if failing and fine:
            least = min([each.failure_rate for each in fine])
            for each in failing:
                if each in shunned or 2.0 * least >= each.failure_rate:
                    continue
                if self._due(each, now) and each in fine and each not in tried:
                    if homed:
                        continue
                    self.asked(each, now)
                    return tuple([other for other in endpoints if other is not each])
                shunned.append(each)
        if all(each in shunned for each in fine):
            return ()
        return tuple(shunned)

    def asked(self, endpoint: Endpoint, now: float) -> None:
        """An upstream gets a request: if it is one that fails, this is the look at it."""
        look = self._looks.get(endpoint)
        if look is not None:
            look.asked_at, look.due = now, now + look.gap_s

    def answered(self, endpoint: Endpoint, *, well: bool, now: float, since: float = inf) -> None:
        """A call that was sent at `since` ended: who failed and is well again is looked at more, who is not less."""
        look = self._looks.get(endpoint)
        if look is None:
            return
        if well:
            look.gap_s, look.due = _FIRST_LOOK_S, now
        elif since >= look.asked_at:
            look.gap_s = min(_LONGEST_LOOK_S, 2.0 * look.gap_s)
            look.due = now + look.gap_s

    def served(self, endpoint: Endpoint, errand: Hashable | None) -> None:
        """An upstream served an errand, so it is no misfit for it (any more)."""
        refusals = self._errands.get(errand) if errand is not None else None
        if refusals is not None and refusals.pop(endpoint, None) is not None and not refusals:
            del self._errands[errand]

    def misfit(self, endpoint: Endpoint, errand: Hashable | None, now: float) -> None:
        """An upstream turned away a request that another one then served."""
        if errand is None:
            return
        refusals = self._errands.get(errand)
        if refusals is None:
            refusals = self._errands[errand] = {}
        refused = refusals.get(endpoint)
        if refused is None:
            refused = refusals[endpoint] = _Refusals()
        refused.until = now + min(_LONGEST_SHUN_S, _SHUN_S * 2.0 ** min(refused.count, 10))
        refused.count += 1
        self._errands.move_to_end(errand)
        while len(self._errands) > _MAX_ERRANDS:
            self._errands.popitem(last=False)

    def report(self, endpoint: Endpoint) -> list[str]:
        """Return the routes of which it turns some requests away that others serve, a handful at most."""
        names = {
            str(errand[0]) for errand, each in self._errands.items() if type(errand) is tuple and endpoint in each
        }
        return sorted(names)[:16]

    def _misfits(self, errand: Hashable, now: float) -> list[Endpoint] | None:
        refusals = self._errands.get(errand)
        if refusals is None:
            return None
        found = []
        for endpoint, refused in refusals.items():
            if now < refused.until:
                found.append(endpoint)
            else:
                # One at a time goes there again, to see.
                refused.until = now + _RETRIAL_S
        return found

    def _fade(self, blemished: Sequence[Endpoint], now: float) -> None:
        share = 0.5 ** (min(60.0, now - self._faded_at) / _FADE_S) if self._faded_at else 1.0
        self._faded_at = now
        for each in blemished:
            if each.failure_rate <= _FAILING:
                each.failure_rate = each.failure_rate * share if each.failure_rate > 1e-3 else 0.0

    def _due(self, endpoint: Endpoint, now: float) -> bool:
        look = self._looks.get(endpoint)
        if look is None:
            self._looks[endpoint] = _Look(now)
            return False
        return now >= look.due


def _failing(blemished: Sequence[Endpoint], now: float, upstreams: int) -> list[Endpoint]:
    """Return who fails often, and who has just broken off twice in a row.

    Two breaks are little evidence: a request that kills whoever reads it would leave few to serve the others. So
    they count for half of the upstreams at most.
    """
    failing = [each for each in blemished if each.failure_rate > _FAILING]
    for each in blemished:
        if 2 * len(failing) + 2 > upstreams:
            break
        if each.failure_rate <= _FAILING and each.standing.breaks_off(now):
            failing.append(each)
    return failing
