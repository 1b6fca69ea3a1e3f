"""Short ways to make what the controller is fed with."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Literal

from controller.dispatch.merge_upstream import MergeUpstream
from controller.loop import PoolController
from controller.models.batch_model import BatchModel
from controller.observation import Observation, Result
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from policies.base import Job


def controller(
    *,
    slo: SLO | None = None,
    size: int = 8,
    low: int = 1,
    high: int = 64,
    law: str = "aimd",
    options: Mapping[str, Any] | None = None,
    mode: Literal["merge", "gate"] = "gate",
    window_ms: float = 0.0,
) -> PoolController:
    return PoolController(
        "pool",
        slo=SLO(e2e_s=10.0) if slo is None else slo,
        setpoints=Setpoints(size, window_ms),
        bounds=Bounds(low, high, 0.0, 100.0),
        law=law,
        law_options=options,
        mode=mode,
        now=0.0,
        wall=lambda: 1.0e9,
    )


def observation(
    service: float,
    *,
    done: float = 100.0,
    queue: float = 0.0,
    batch: int = 8,
    generation: int = 0,
    result: Result = Result.OK,
    first: float | None = None,
    tokens: int = 0,
    upstream: str = "u",
) -> Observation:
    dispatched = done - service
    return Observation(
        "pool",
        arrival=dispatched - queue,
        done=done,
        result=result,
        generation=generation,
        dispatched=dispatched,
        first_byte=None if first is None else dispatched + first,
        last_byte=done,
        batch=batch,
        output_tokens=tokens,
        streamed=first is not None,
        upstream=upstream,
    )


def job(arrival: float = 0.0, **more: Any) -> Job:
    return Job("id", arrival, **more)


def mislead(pool: PoolController, factor: float) -> None:
    """Let what is believed of a merged call's time be wrong by `factor`, as learned from calls that took so long."""
    upstream, rng = pool.dispatcher.upstream, random.Random(1)
    assert isinstance(upstream, MergeUpstream)
    believed, wrong = upstream.model, BatchModel(upstream.model.late_target)
    for _ in range(200):
        size = rng.randint(1, 32)
        wrong.observe(size, factor * believed.predict(size) * math.exp(rng.gauss(0.0, 0.05)), 0.0, [])
    upstream.model = wrong
