"""Online conformal correction: makes the ninth decile hold nine times in ten, whatever the model got wrong.

Adaptive conformal inference (Gibbs and Candes, 2021) in log space: after each outcome

    theta += gain * (missed - (1 - coverage)),      p90 = p90_raw * exp(theta)

so that over any long stretch the share of misses is `1 - coverage`, without any assumption on the data. One theta
per (model, route); a young one starts from, and is shrunk to, that of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

__all__ = ["Conformal"]


class _Theta:
    __slots__ = ("n", "value")

    def __init__(self, value: float = 0.0, n: int = 0) -> None:
        self.value = value
        self.n = n

    def step(self, missed: bool, miss_rate: float, gain: float, limit: float) -> None:
        # A decaying start finds the level quickly; the floor keeps following it.
        pace = max(gain, 5.0 * gain / (1.0 + self.n / 20.0))
        self.n += 1
        self.value = min(limit, max(-limit, self.value + pace * (missed - miss_rate)))


class Conformal:
    """The correction theta per (model, route), to be added to the raw ninth decile in log space."""

    def __init__(
        self, *, coverage: float = 0.9, gain: float = 0.015, k: float = 50.0, limit: float = 3.0, capacity: int = 256
    ) -> None:
        if not 0.5 < coverage < 1:
            raise ValueError(f"coverage must lie in (0.5, 1), not {coverage}")
        self._miss_rate = 1.0 - coverage
        self._gain = gain
        self._k = k
        self._limit = limit
        self._capacity = capacity
        self._all = _Theta()
        self._routes: OrderedDict[tuple[str, str], _Theta] = OrderedDict()

    def theta(self, model: str, route: str) -> float:
        """Return the correction in force for (model, route)."""
        own = self._routes.get((model, route))
        if own is None:
            return self._all.value
        return self._all.value + own.n / (own.n + self._k) * (own.value - self._all.value)

    def observe(self, model: str, route: str, missed: bool) -> None:
        """Take note whether the outcome lay above the corrected ninth decile."""
        key = (model, route)
        own = self._routes.get(key)
        if own is None:
            own = self._routes[key] = _Theta(self._all.value)
            if len(self._routes) > self._capacity:
                self._routes.popitem(last=False)
        else:
            self._routes.move_to_end(key)
        own.step(missed, self._miss_rate, self._gain, self._limit)
        self._all.step(missed, self._miss_rate, self._gain, self._limit)

    def restart(self, theta: float) -> None:
        """A new model: start from the correction its holdout asked for, and follow quickly at first."""
        self._all = _Theta(min(self._limit, max(-self._limit, theta)))
        self._routes.clear()

    def widen(self, model: str, route: str, by: float = 0.1) -> None:
        """After a drift: be more careful until the new level is known."""
        own = self._routes.get((model, route))
        if own is not None:
            own.value = min(self._limit, own.value + by)
            own.n = min(own.n, 10)

    def state(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        routes = [[model, route, theta.value, theta.n] for (model, route), theta in self._routes.items()]
        return {"all": [self._all.value, self._all.n], "routes": routes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over `state`. Raises ValueError, TypeError or KeyError when it is not one."""
        value, n = state["all"]
        routes = [((str(m), str(r)), _Theta(float(v), int(k))) for m, r, v, k in state["routes"][-self._capacity :]]
        self._all, self._routes = _Theta(float(value), int(n)), OrderedDict(routes)
