"""What a predictor has learned of its traffic, apart from the trained model: what outlives a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller.predictor.conformal import Conformal
from controller.predictor.history import History
from controller.predictor.ladder import Ladder, Rung
from controller.predictor.scale import Levels, Scale
from controller.predictor.state import StateError

__all__ = ["Memory"]


class Memory:
    """Scales, history, corrections and standings; each is its own class's to explain."""

    def __init__(self, *, history_keys: int, min_samples: int) -> None:
        self.scale = Scale()
        """How long answers usually are."""
        self.levels = Levels()
        """How far they lie above the trained model."""
        self.history = History(capacity=history_keys)
        self.conformal = {rung: Conformal() for rung in Rung}
        """What each step's ninth decile is corrected by."""
        self.ladder = Ladder(min_samples=min_samples)
        """Which step is relied on, and why."""

    def drifted(self, model: str, tenant: str, route: str) -> None:
        """Lengths of `model` have changed: what was learned of them before counts little."""
        self.scale.forget(model, tenant)
        self.levels.forget(model, tenant)
        self.ladder.drifted(model)
        for conformal in self.conformal.values():
            conformal.widen(model, route)

    def sections(self) -> Iterator[tuple[str, Any]]:
        """Yield (section, JSON-ready page) pairs, each made in well under a millisecond."""
        yield from (("scale", page) for page in self.scale.pages())
        yield from (("levels", page) for page in self.levels.pages())
        yield "spread", self.history.spread()
        yield from (("tracks", page) for page in self.history.pages())
        yield from (("conformal", [rung.value, conformal.state()]) for rung, conformal in self.conformal.items())
        yield "ladder", self.ladder.state()

    def restore(self, pages: Mapping[str, list[Any]]) -> None:
        """Take over what `sections` yielded, in a memory that has learned nothing yet.

        Raises ValueError, TypeError or KeyError when it is not that; then this one is of no use any more.
        """
        self.scale.restore(pages["scale"])
        self.levels.restore(pages["levels"])
        self.history.restore(_only(pages["spread"]), (track for page in pages["tracks"] for track in page))
        for rung, state in pages["conformal"]:
            self.conformal[Rung(rung)].restore(state)
        self.ladder.restore(_only(pages["ladder"]))


def _only(pages: list[Any]) -> Any:
    if len(pages) != 1:
        raise StateError(f"{len(pages)} pages where one is due")
    return pages[0]
