"""Trying a change before making it: on paper, in the shadow, or by turns."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import asdict
from typing import Any

from aiohttp import web

from controller.loop import PoolController
from controller.simulator.whatif import Settings, TooLittle, ask, frame
from controller.slo import SLO
from controller.tune.experiment import Arm
from proxy.admin.base import Group, answer
from proxy.admin.changes import SETPOINTS, check_bounds
from proxy.admin.operator import Operator
from proxy.admin.problem import ApiError, field_error
from proxy.admin.requests import read_body, require_match
from proxy.admin.schemas import ExperimentIn, ShadowIn, WhatIfIn, WhatIfOut
from proxy.admin.views import etag, merged_slo
from proxy.pool_view import PoolView

__all__ = ["TrialsApi"]


class TrialsApi(Group):
    """The operations that try things out. Questions are answered one at a time: each keeps a core busy."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self._turn = asyncio.Lock()

    async def post_what_if(self, request: web.Request) -> web.Response:
        """Play the last minutes' requests with and without a change."""
        pool = self.pool(request)
        wanted = await read_body(request, WhatIfIn)
        now, then = _settings(pool), _changed(pool, wanted)
        controller = pool.controller
        try:
            question = frame(
                self.operator.recent(pool.name),
                controller.mode,
                asdict(controller.bounds),
                pool.load(self.now()).slots,
                now,
                then,
            )
        except TooLittle as error:
            raise ApiError(409, f"There is too little traffic to answer from: {error}.") from None
        try:
            async with self._turn:
                figures = await ask(question)
        except RuntimeError as error:
            raise ApiError(503, f"The question could not be answered: {error}.") from None
        return answer(WhatIfOut(requests=len(question.requests), span_s=question.requests[-1][0], **figures))

    async def put_shadow(self, request: web.Request) -> web.Response:
        """Let another law advise without turning anything."""
        pool = self.pool(request)
        wanted = await read_body(request, ShadowIn)
        require_match(request, etag(pool))
        self.change(
            request,
            pool,
            lambda now, actor: pool.controller.set_shadow(wanted.law, wanted.options, now, actor),
            "law",
        )
        return self.show(pool)

    async def post_experiment(self, request: web.Request) -> web.Response:
        """Let another law take turns with the one in force."""
        pool = self.pool(request)
        wanted = await read_body(request, ExperimentIn)
        require_match(request, etag(pool))
        settings = _settings(pool)
        present, candidate = Arm(settings.law, settings.options), Arm(wanted.law, wanted.options)
        times = {"block_s": wanted.block_s, "settle_s": 0.2 * wanted.block_s, "most_pairs": wanted.pairs}
        self.change(
            request,
            pool,
            lambda now, actor: pool.controller.start_experiment(
                present, candidate, now, actor, seed=secrets.randbits(32), **times
            ),
            "law",
        )
        return self.show(pool)

    async def delete_experiment(self, request: web.Request) -> web.Response:
        """End an experiment in favour of the law it began with."""
        pool = self.pool(request)
        require_match(request, etag(pool))
        if pool.controller.snapshot(self.now())["experiment"] is None:
            raise ApiError(409, "No experiment is running.")
        self.change(request, pool, lambda now, actor: pool.controller.stop_experiment(now, actor), "experiment")
        return self.show(pool)


def _settings(pool: PoolView) -> Settings:
    """Return what `pool` runs under."""
    controller = pool.controller
    return Settings(
        asdict(controller.slo),
        controller.setpoints.max_batch_size,
        controller.setpoints.window_ms,
        dict(controller.pins),
        controller.law_name,
        dict(controller.law_options),
    )


def _changed(pool: PoolView, wanted: WhatIfIn) -> Settings:
    """Return what it would run under. Raises ApiError 422 where a part would be refused."""
    settings = _settings(pool)
    if wanted.slo is not None:
        settings = settings._replace(slo=asdict(merged_slo(pool.controller.slo, wanted.slo)))
    if wanted.setpoints is not None:
        settings = settings._replace(pins=_pins(pool, settings.pins, wanted))
    if wanted.law is not None:
        settings = settings._replace(law=wanted.law.law, options=wanted.law.options)
    try:
        PoolController(
            pool.name,
            slo=SLO(**settings.slo),
            setpoints=pool.controller.setpoints,
            bounds=pool.controller.bounds,
            law=settings.law,
            law_options=settings.options,
            mode=pool.controller.mode,
            now=0.0,
        )
    except (TypeError, ValueError) as error:
        raise field_error("law", str(error)) from None
    return settings


def _pins(pool: PoolView, pins: dict[str, float], wanted: WhatIfIn) -> dict[str, float]:
    assert wanted.setpoints is not None
    given: dict[str, Any] = {name: getattr(wanted.setpoints, name) for name in wanted.setpoints.model_fields_set}
    fresh = {name: float(value) for name, value in given.items() if value is not None}
    check_bounds(pool, fresh)
    kept = {name: value for name, value in pins.items() if name not in given}
    return {name: value for name, value in (kept | fresh).items() if name in SETPOINTS}
