"""The operations of the admin API, one method each."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from pydantic import BaseModel

from controller.decision import Decision
from proxy.admin.operator import Operator, PoolView
from proxy.admin.problem import ApiError, field_error
from proxy.admin.requests import actor_of, integer, read_body, require_match
from proxy.admin.schemas import (
    ConfigOut,
    DecisionsOut,
    Health,
    LawIn,
    PoolsOut,
    Readiness,
    ReloadOut,
    SetpointsPatch,
    SloPatch,
)
from proxy.admin.views import etag, merged_slo, pool_detail, pool_summary, show_decision
from proxy.config.errors import ConfigError
from proxy.config.show import as_data

__all__ = ["KNOBS", "AdminApi"]

KNOBS = ("max_batch_size", "window_ms")
MAX_DECISIONS = 1000
_AUDIT = logging.getLogger("trimtab.audit")


class AdminApi:
    """Answers for one running proxy. Every change takes effect with the next dispatch and touches no request."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def list_pools(self, request: web.Request) -> web.Response:
        """Every pool at a glance."""
        now = self._now()
        return _json(PoolsOut(pools=[pool_summary(pool, now) for pool in self._operator.pools.values()]))

    async def get_pool(self, request: web.Request) -> web.Response:
        """One pool in full."""
        return self._show(self._pool(request))

    async def patch_slo(self, request: web.Request) -> web.Response:
        """Change targets of the promise."""
        pool = self._pool(request)
        patch = await read_body(request, SloPatch)
        require_match(request, etag(pool))
        slo = merged_slo(pool.controller.slo, patch)
        self._change(request, pool, lambda now, actor: pool.controller.set_slo(slo, now, actor), "body")
        self._operator.metrics.slo_changed(pool.name, slo)
        return self._show(pool)

    async def patch_setpoints(self, request: web.Request) -> web.Response:
        """Pin knobs, or give them back with null."""
        pool = self._pool(request)
        patch = await read_body(request, SetpointsPatch)
        require_match(request, etag(pool))
        given = {name: getattr(patch, name) for name in KNOBS if name in patch.model_fields_set}
        pins = {name: float(value) for name, value in given.items() if value is not None}
        freed = [name for name, value in given.items() if value is None]
        _check_bounds(pool, pins)
        if pins:
            self._change(request, pool, lambda now, actor: pool.controller.pin(pins, now, actor), "body")
        if freed:
            self._change(request, pool, lambda now, actor: pool.controller.unpin(freed, now, actor), "body")
        return self._show(pool)

    async def delete_pins(self, request: web.Request) -> web.Response:
        """Give knobs back to the law: all, or those named by `name`."""
        pool = self._pool(request)
        names = request.query.getall("name", [])
        for name in names:
            if name not in KNOBS:
                raise field_error("name", f"got {name[:40]!r}; accepted: {' or '.join(KNOBS)}", known=list(KNOBS))
        require_match(request, etag(pool))
        freed = names or None
        self._change(request, pool, lambda now, actor: pool.controller.unpin(freed, now, actor), "name")
        return self._show(pool)

    async def put_law(self, request: web.Request) -> web.Response:
        """Hand the knobs to another law; they keep their values."""
        pool = self._pool(request)
        wanted = await read_body(request, LawIn)
        require_match(request, etag(pool))
        self._change(
            request, pool, lambda now, actor: pool.controller.set_law(wanted.law, wanted.options, now, actor), "law"
        )
        return self._show(pool)

    async def list_decisions(self, request: web.Request) -> web.Response:
        """What was decided and why."""
        pool = self._pool(request)
        limit = integer(request, "limit", 50, 1, MAX_DECISIONS)
        since = integer(request, "since", -1, 0, 10**15)
        log = pool.controller.decisions
        found = log.latest(limit) if since < 0 else log.since(since)[:limit]
        last = max((decision.id for decision in found), default=max(since, 0))
        return _json(DecisionsOut(decisions=[show_decision(decision) for decision in found], last_id=last))

    async def get_config(self, request: web.Request) -> web.Response:
        """The configuration in force."""
        return _json(ConfigOut(generation=self._operator.generation, config=as_data(self._operator.config)))

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration again; a bad one changes nothing."""
        actor = actor_of(request)
        try:
            done = await self._operator.reload()
        except ConfigError as error:
            _AUDIT.warning("reload by %s refused: %s", actor, error)
            raise ApiError.invalid(error.problems) from None
        _AUDIT.info("reload by %s: generation %d, changed %s", actor, done.generation, ", ".join(done.changed) or "-")
        return _json(ReloadOut(
            generation=done.generation, changed=list(done.changed), restart_required=list(done.restart_required)
        ))  # fmt: skip

    async def healthz(self, request: web.Request) -> web.Response:
        """Whether the process answers."""
        return _json(Health(status="ok"))

    async def readyz(self, request: web.Request) -> web.Response:
        """Whether traffic should be sent here."""
        reasons = self._operator.unready()
        return _json(Readiness(ready=not reasons, reasons=reasons), status=503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus or OpenMetrics text."""
        body, content_type = self._operator.metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _now(self) -> float:
        return self._operator.clock.now()

    def _pool(self, request: web.Request) -> PoolView:
        name = request.match_info["pool"]
        pool = self._operator.pools.get(name)
        if pool is None:
            known = list(self._operator.pools)
            raise ApiError(
                404, f"There is no pool {name[:64]!r}; known pools: {', '.join(known)}.",
                errors=[{"field": "pool", "message": "unknown", "known": known}],
            )  # fmt: skip
        return pool

    def _change(
        self, request: web.Request, pool: PoolView, change: Callable[[float, str], Decision], field: str
    ) -> None:
        """Make a change in an operator's name; write it to the audit log. A ValueError becomes a 422."""
        actor = actor_of(request)
        try:
            decision = change(self._now(), actor)
        except ValueError as error:
            raise field_error(field, str(error)) from None
        pool.knobs_changed()
        self._operator.metrics.decided(pool.name, decision.rule)
        _AUDIT.info(
            "pool %s: %s", pool.name, decision.text,
            extra={"pool": pool.name, "actor": actor, "decision": decision.id, "rule": decision.rule},
        )  # fmt: skip

    def _show(self, pool: PoolView) -> web.Response:
        return _json(pool_detail(pool, self._now()), headers={"ETag": etag(pool)})


def _check_bounds(pool: PoolView, pins: dict[str, float]) -> None:
    for name, value in pins.items():
        allowed = getattr(pool.config.setpoints, name)
        if not allowed.min <= value <= allowed.max:
            accepted = f"{allowed.min:g} to {allowed.max:g}, the pool's setpoints.{name}"
            raise field_error(name, f"got {value:g}; accepted: {accepted}", accepted=accepted)


def _json(model: BaseModel, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, headers=headers, body=model.model_dump_json().encode(), content_type="application/json"
    )
