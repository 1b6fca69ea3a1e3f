"""A synthetic workload with something to learn, and trainings under the test's control."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence

from controller.predictor import LengthPredictor
from controller.predictor.export import Ensemble
from controller.predictor.model import LengthModel, Probe, parse_model, write_model
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Rejected, Trainer, pack
from controller.predictor.worker import train, unpack

SHORT, LONG = "Is number {} even? Answer yes or no.", "Write a long detailed essay about number {}."


class Clock:
    """A clock that is set, not waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Inline:
    """A training that is done when it is started."""

    def __init__(self, job: Job) -> None:
        file = io.BytesIO()
        pack(job, file, lambda: None)
        head, raw, lines = unpack(file.getvalue())
        incumbent = parse_model(lines, names=FEATURES) if lines else None
        out = list(train(raw, head["names"], head["groups"], incumbent, seed=job.seed))
        self._result = parse_model(out, names=FEATURES) if len(out) > 1 else Rejected(out[0])

    def result(self) -> LengthModel | Rejected | None:
        return self._result

    def cancel(self) -> None:
        """Nothing to stop."""


class Never:
    """A training that never comes to an end."""

    cancelled = False

    def __init__(self, job: Job) -> None:
        self.job = job

    def result(self) -> LengthModel | Rejected | None:
        return None

    def cancel(self) -> None:
        self.cancelled = True


def make(clock: Clock, launch: type[Inline | Never] = Inline, **options: int) -> LengthPredictor:
    """Return a predictor that trains by `launch`."""
    trainer = Trainer(FEATURES, now=clock.now, launch=launch, **options)
    return LengthPredictor(clock=clock, hour=lambda: 12.0, timer=lambda: 0.0, trainer=trainer)


def serve(
    predictor: LengthPredictor, clock: Clock, n: int, *, rng: random.Random, model: str = "m", factor: float = 1.0
) -> None:
    """Answer `n` requests, half short, half long, each prompt once."""
    for _ in range(n):
        clock.now += 1.0
        long = rng.random() < 0.5
        text = (LONG if long else SHORT).format(rng.randrange(10**9))
        prediction = predictor.predict(model=model, route="chat", text=text, prompt_tokens=12)
        tokens = int(factor * math.exp(rng.gauss(6.5 if long else 1.5, 0.3)))
        clock.now += 0.01 * tokens
        predictor.observe(prediction, tokens, "stop")


def constant_model(z50: float, z90: float, probes: Sequence[Probe] = ()) -> list[str]:
    """Return the lines of a model that answers the same to everything."""
    width = len(FEATURES)
    groups = [("m", "", 100.0, 100.0, 500)]
    return list(
        write_model(FEATURES, groups, Ensemble(width, z50, ()), Ensemble(width, z90, ()), probes, {"rows": 1})
    )
