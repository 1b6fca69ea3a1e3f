"""Which step of the ladder is relied on. Each must prove itself on live outcomes, and can lose its place again.

Strongest first: `learned` (the boosted quantiles, exact repeats blended in), `history` (keyed), `usual` (running
quantiles of (model, tenant), the constant to beat). All of them answer every request; one answer is used, all are
compared with the outcome. A step is used

* to order, while its median's quantile loss is no more than the constant's;
* to admit, while its ninth decile's loss is no more than the constant's and the decile covers at least COVERED_LOW of
  the outcomes. Covering more than COVERED_HIGH is a fault only while it also costs more than the constant does: where
  every answer has the same length, covering all of them is right.

Losses are divided by the usual length, so that models with long answers do not outvote the others, and fade with
KEEP per outcome. A model with fewer than `min_samples` outcomes is judged by the record of all models together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from controller.predictor.calibration import pinball

__all__ = ["COVERED_HIGH", "COVERED_LOW", "Holdout", "Ladder", "Rung", "Standing", "holdout_of"]

KEEP = 0.995
"""Share of its weight that an outcome keeps with the next one: about the newest 200 count."""

COVERED_LOW, COVERED_HIGH = 0.82, 0.97

GIVE_UP, TAKE_BACK = 1.02, 1.0
"""Loss over the constant's above which a step is dropped, and at or below which it is taken (back)."""

_LONGEST_MEMORY = 200.0


class Rung(StrEnum):
    """One step, strongest first."""

    LEARNED = "learned"
    HISTORY = "history"
    USUAL = "usual"


class Holdout(NamedTuple):
    """What the training process measured of a new model on outcomes it had not seen. Losses per usual length."""

    n: int
    loss50: float
    loss90: float
    usual50: float
    usual90: float


class Standing:
    """The record of one step, for one model or over all."""

    __slots__ = ("admits", "covered", "judged", "loss50", "loss90", "n", "orders", "usual50", "usual90", "weight")

    def __init__(self) -> None:
        self.n = 0
        """Outcomes so far."""
        self.weight = self.loss50 = self.loss90 = self.usual50 = self.usual90 = 0.0
        self.judged = self.covered = 0.0
        """Outcomes that say something about coverage, and those of them covered; faded."""
        self.orders = self.admits = False
        """Whether it is good enough; `min_samples` apart."""

    def observe(self, loss50: float, loss90: float, usual50: float, usual90: float, covered: bool | None) -> None:
        """Take in one outcome; `covered` is None where that cannot be said (an answer cut by its bound)."""
        self.n += 1
        self.weight = KEEP * self.weight + 1.0
        self.loss50 = KEEP * self.loss50 + loss50
        self.loss90 = KEEP * self.loss90 + loss90
        self.usual50 = KEEP * self.usual50 + usual50
        self.usual90 = KEEP * self.usual90 + usual90
        if covered is not None:
            self.judged = KEEP * self.judged + 1.0
            self.covered = KEEP * self.covered + covered
        self.judge()

    def judge(self) -> None:
        """Decide anew what it may be used for."""
        self.orders = self.loss50 <= (GIVE_UP if self.orders else TAKE_BACK) * self.usual50 + 1e-9
        worth = self.loss90 <= (GIVE_UP if self.admits else TAKE_BACK) * self.usual90 + 1e-9
        self.admits = worth and self.covered >= COVERED_LOW * self.judged

    def fade(self, weight: float) -> None:
        """Let the past count no more than `weight` outcomes."""
        if self.weight > weight:
            share = weight / self.weight
            for name in ("weight", "loss50", "loss90", "usual50", "usual90", "judged", "covered"):
                setattr(self, name, share * getattr(self, name))

    def credit(self, holdout: Holdout, coverage: float) -> None:
        """Take in what a holdout showed, as that many outcomes."""
        count = min(float(holdout.n), _LONGEST_MEMORY)
        self.n += holdout.n
        self.weight += count
        self.loss50 += count * holdout.loss50
        self.loss90 += count * holdout.loss90
        self.usual50 += count * holdout.usual50
        self.usual90 += count * holdout.usual90
        self.judged += count
        self.covered += count * coverage
        self.judge()

    def numbers(self) -> list[float]:
        """Return the record as numbers."""
        return [
            self.n, self.weight, self.loss50, self.loss90, self.usual50, self.usual90, self.judged, self.covered,
            self.orders, self.admits,
        ]  # fmt: skip

    @classmethod
    def of(cls, numbers: Any) -> Standing:
        """Read `numbers()` back. Raises ValueError or TypeError when they are none."""
        self = cls()
        n, *sums, orders, admits = numbers
        self.n, self.orders, self.admits = int(n), bool(orders), bool(admits)
        values = [float(value) for value in sums]
        if len(values) != 7 or not all(0.0 <= value < 1e12 for value in values):
            raise ValueError(f"a standing of {values}")
        (
            self.weight, self.loss50, self.loss90, self.usual50, self.usual90, self.judged, self.covered
        ) = values  # fmt: skip
        return self

    def report(self, min_samples: int) -> dict[str, Any]:
        """Return it JSON-ready, with the reasons in words."""
        known = self.n >= min_samples
        return {
            "n": self.n,
            "pinball50_ratio": _ratio(self.loss50, self.usual50),
            "pinball90_ratio": _ratio(self.loss90, self.usual90),
            "coverage": _ratio(self.covered, self.judged),
            "orders": known and self.orders,
            "admits": known and self.admits,
            "why": self._why(min_samples),
        }

    def _why(self, min_samples: int) -> str:
        if self.n < min_samples:
            return f"{self.n} of the {min_samples} outcomes it takes to be relied on"
        faults = []
        if not self.orders:
            faults.append(f"its median loses {_times(self.loss50, self.usual50)} what the usual length does")
        if not self.admits:
            coverage = _ratio(self.covered, self.judged)
            if coverage is not None and coverage < COVERED_LOW:
                faults.append(f"its p90 covers {coverage:.0%}, less than {COVERED_LOW:.0%}")
            else:
                faults.append(f"its p90 loses {_times(self.loss90, self.usual90)} what the usual one does")
        return "; ".join(faults) or "it does better than the usual length"


class Ladder:
    """The standing of every step, per model and over all."""

    def __init__(self, *, min_samples: int = 50, capacity: int = 256) -> None:
        self.min_samples = min_samples
        """Outcomes a step must have been compared with before anything relies on it."""
        self._capacity = capacity
        self._all = {rung: Standing() for rung in Rung}
        self._models: OrderedDict[str, dict[Rung, Standing]] = OrderedDict()

    def orders(self, rung: Rung, model: str) -> bool:
        """Whether the median of `rung` may decide for `model`."""
        standing = self.standing(rung, model)
        return standing.orders and standing.n >= self.min_samples

    def admits(self, rung: Rung, model: str) -> bool:
        """Whether the ninth decile of `rung` may decide for `model`."""
        standing = self.standing(rung, model)
        return standing.admits and standing.n >= self.min_samples

    def standing(self, rung: Rung, model: str) -> Standing:
        """Return the record that speaks for `model`: its own once it is long enough, else that of all."""
        own = self._models.get(model)
        if own is not None and own[rung].n >= self.min_samples:
            return own[rung]
        return self._all[rung]

    def observe(
        self, rung: Rung, model: str, p50: float, p90: float, usual: tuple[float, float], actual: float, *,
        scale: float, covered: bool | None,
    ) -> None:  # fmt: skip
        """Compare what `rung` said with the outcome; all lengths in tokens, `scale` the usual one."""
        own = self._models.get(model)
        if own is None:
            own = self._models[model] = {each: Standing() for each in Rung}
            if len(self._models) > self._capacity:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        losses = (
            pinball(actual, p50, 0.5) / scale,
            pinball(actual, p90, 0.9) / scale,
            pinball(actual, usual[0], 0.5) / scale,
            pinball(actual, usual[1], 0.9) / scale,
        )
        own[rung].observe(*losses, covered)
        self._all[rung].observe(*losses, covered)

    def promoted(self, holdout: Holdout | None, coverage: float = 0.9) -> None:
        """A new model serves as `learned`: its holdout speaks for it, and the record of the one before a little."""
        standing = self._all[Rung.LEARNED]
        standing.fade(0.0 if holdout is None else 50.0)
        if holdout is None:
            standing.n = 0
        else:
            standing.credit(holdout, coverage)
        for own in self._models.values():
            own[Rung.LEARNED] = Standing()

    def drifted(self, model: str) -> None:
        """Lengths of `model` have changed: what it showed before counts little."""
        for standing in self._models.get(model, {}).values():
            standing.fade(20.0)

    def lost(self) -> list[str]:
        """Return the models for which the learned median is not listened to although there is one."""
        return [
            name
            for name, own in self._models.items()
            if (standing := own[Rung.LEARNED]).n >= self.min_samples and not standing.orders
        ]

    def report(self, model: str = "") -> dict[str, Any]:
        """Return every step's record for `model`, "" for all together, strongest first."""
        table = self._models.get(model, {}) if model else self._all
        return {rung.value: standing.report(self.min_samples) for rung, standing in table.items()}

    def in_use(self, model: str = "") -> dict[str, str]:
        """Return which step orders and which admits, had all of them answered; `none` where nothing does."""
        order = next((rung for rung in Rung if self.orders(rung, model)), None)
        admit = next((rung for rung in Rung if self.admits(rung, model)), None)
        return {"order": order.value if order else "none", "admit": admit.value if admit else "none"}

    def state(self) -> list[Any]:
        """Return a JSON-ready copy."""
        rows: list[Any] = [["", rung.value, standing.numbers()] for rung, standing in self._all.items()]
        for model, own in list(self._models.items())[-64:]:
            rows += [[model, rung.value, standing.numbers()] for rung, standing in own.items() if standing.n]
        return rows

    def restore(self, state: Any) -> None:
        """Take over `state`. Raises ValueError, TypeError or KeyError when it is not one."""
        whole = {rung: Standing() for rung in Rung}
        models: OrderedDict[str, dict[Rung, Standing]] = OrderedDict()
        for model, rung, numbers in state:
            table = whole if model == "" else models.setdefault(str(model), {each: Standing() for each in Rung})
            table[Rung(rung)] = Standing.of(numbers)
        self._all, self._models = whole, models


def holdout_of(report: Mapping[str, Any]) -> Holdout | None:
    """Return what a model's report says of its holdout; None when it says nothing."""
    try:
        losses = [float(report[name]) for name in ("loss50", "loss90", "usual50", "usual90")]
        return Holdout(int(report["judged"]), *losses)
    except (KeyError, TypeError, ValueError):
        return None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None


def _times(loss: float, usual: float) -> str:
    return f"{loss / usual:.2f} times" if usual > 0.0 else "more than"
