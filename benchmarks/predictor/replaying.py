"""A predictor under a clock that is set, with trainings that are done when they are started."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from controller.predictor import LengthPredictor
from controller.predictor.model import LengthModel, parse_model
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Rejected, Trainer, pack
from controller.predictor.worker import train, unpack


class Inline:
    """A training that is done when it is started, for runs that repeat exactly."""

    def __init__(self, job: Job) -> None:
        file = io.BytesIO()
        pack(job, file, lambda: None)
        head, raw, lines = unpack(file.getvalue())
        incumbent = parse_model(lines, names=FEATURES) if lines else None
        out = list(train(raw, head["names"], head["groups"], incumbent, seed=job.seed))
        self._result = parse_model(out, names=FEATURES) if len(out) > 1 else Rejected(out[0])

    def result(self) -> LengthModel | Rejected:
        return self._result

    def cancel(self) -> None:
        """Nothing to stop."""


class Timeline:
    """A clock that is set, not waited for."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def new_predictor(clock: Callable[[], float], **trainer: Any) -> LengthPredictor:
    return LengthPredictor(
        clock=clock, hour=lambda: 12.0, trainer=Trainer(FEATURES, now=clock(), launch=Inline, **trainer)
    )


def settle(predictor: LengthPredictor) -> None:
    """Let a training that is due start, and take its model over."""
    predictor.tick()
    predictor.tick()
    if predictor.calibration()["model"] is None:
        raise RuntimeError(f"no model was trained: {predictor.calibration()['trainer']}")


def fresh_copy(state: Sequence[str], clock: Timeline) -> LengthPredictor:
    """Another predictor that learned the same; what it sees from now on is its own."""
    copy = LengthPredictor(clock=clock, hour=lambda: 12.0, learn=False)
    if not copy.restore(state):
        raise RuntimeError("the state did not survive")
    return copy
