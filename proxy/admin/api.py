"""Looking at pools and steering them: promise, knobs, law, decisions."""

from __future__ import annotations

from aiohttp import web

from proxy.admin.base import Group, answer
from proxy.admin.expiry import Kind, undo_of
from proxy.admin.operator import PoolView
from proxy.admin.problem import field_error
from proxy.admin.requests import integer, read_body, require_match, seconds
from proxy.admin.schemas import (
    DecisionsOut,
    DrainIn,
    FreezeIn,
    LawIn,
    PoolsOut,
    RollbackIn,
    SetpointsPatch,
    SloPatch,
)
from proxy.admin.views import etag, merged_slo, pool_summary, restored_slo, show_decision

__all__ = ["KNOBS", "MAX_DECISIONS", "PoolsApi", "check_bounds"]

KNOBS = ("max_batch_size", "window_ms")
MAX_DECISIONS = 1000
MAX_FOR_S = 30 * 86_400.0


class PoolsApi(Group):
    """The operations on pools."""

    async def list_pools(self, request: web.Request) -> web.Response:
        """Every pool at a glance."""
        now = self.now()
        return answer(PoolsOut(pools=[pool_summary(pool, now) for pool in self.operator.pools.values()]))

    async def get_pool(self, request: web.Request) -> web.Response:
        """One pool in full."""
        return self.show(self.pool(request))

    async def patch_slo(self, request: web.Request) -> web.Response:
        """Change targets of the promise."""
        pool = self.pool(request)
        patch = await read_body(request, SloPatch)
        for_s = self._begin(request, pool)
        slo, undo = merged_slo(pool.controller.slo, patch), undo_of(pool, "slo")
        self.change(request, pool, lambda now, actor: pool.controller.set_slo(slo, now, actor), "body")
        self._end(pool, "slo", for_s, undo)
        return self.show(pool)

    async def patch_setpoints(self, request: web.Request) -> web.Response:
        """Pin knobs, or give them back with null."""
        pool = self.pool(request)
        patch = await read_body(request, SetpointsPatch)
        for_s = self._begin(request, pool)
        given = {name: getattr(patch, name) for name in KNOBS if name in patch.model_fields_set}
        pins = {name: float(value) for name, value in given.items() if value is not None}
        freed = [name for name, value in given.items() if value is None]
        check_bounds(pool, pins)
        undo = undo_of(pool, "setpoints")
        if pins:
            self.change(request, pool, lambda now, actor: pool.controller.pin(pins, now, actor), "body")
        if freed:
            self.change(request, pool, lambda now, actor: pool.controller.unpin(freed, now, actor), "body")
        self._end(pool, "setpoints", for_s, undo)
        return self.show(pool)

    async def delete_pins(self, request: web.Request) -> web.Response:
        """Give knobs back to the law: all, or those named by `name`."""
        pool = self.pool(request)
        names = request.query.getall("name", [])
        for name in names:
            if name not in KNOBS:
                raise field_error("name", f"got {name[:40]!r}; accepted: {' or '.join(KNOBS)}", known=list(KNOBS))
        require_match(request, etag(pool))
        freed = names or None
        self.change(request, pool, lambda now, actor: pool.controller.unpin(freed, now, actor), "name")
        self._end(pool, "setpoints", None, {})
        return self.show(pool)

    async def put_law(self, request: web.Request) -> web.Response:
        """Hand the knobs to another law; they keep their values."""
        pool = self.pool(request)
        wanted = await read_body(request, LawIn)
        for_s = self._begin(request, pool)
        undo = undo_of(pool, "law")
        self.change(
            request, pool, lambda now, actor: pool.controller.set_law(wanted.law, wanted.options, now, actor), "law"
        )
        self._end(pool, "law", for_s, undo)
        return self.show(pool)

    async def put_freeze(self, request: web.Request) -> web.Response:
        """Keep the law from turning knobs, or let it go on."""
        pool = self.pool(request)
        wanted = await read_body(request, FreezeIn)
        for_s = self._begin(request, pool)
        undo = undo_of(pool, "freeze")
        self.change(request, pool, lambda now, actor: pool.controller.freeze(wanted.frozen, now, actor), "frozen")
        self._end(pool, "freeze", for_s, undo)
        return self.show(pool)

    async def put_drain(self, request: web.Request) -> web.Response:
        """Take an upstream out, or back in."""
        pool = self.pool(request)
        wanted = await read_body(request, DrainIn)
        require_match(request, etag(pool))
        self.change(
            request, pool, lambda now, who: pool.take_out(wanted.upstream, wanted.draining, now, who), "upstream"
        )
        return self.show(pool)

    async def post_rollback(self, request: web.Request) -> web.Response:
        """Undo a decision: promise, law or freeze as they were before it, or the knobs."""
        pool = self.pool(request)
        wanted = await read_body(request, RollbackIn)
        require_match(request, etag(pool))
        found = [one for one in pool.controller.decisions.since(wanted.decision - 1) if one.id == wanted.decision]
        controller = pool.controller
        if not found:
            raise field_error("decision", f"{wanted.decision} is not kept any more, or was never made")
        rule, old = found[0].rule, dict(found[0].old)
        if rule == "admin.slo":
            self.change(request, pool, lambda now, who: controller.set_slo(restored_slo(old), now, who), "decision")
            self._end(pool, "slo", None, {})
        elif rule == "admin.law":
            self.change(request, pool, lambda now, who: controller.set_law(old["law"], {}, now, who), "decision")
            self._end(pool, "law", None, {})
        elif rule == "admin.freeze":
            self.change(request, pool, lambda now, who: controller.freeze(old["frozen"], now, who), "decision")
            self._end(pool, "freeze", None, {})
        elif rule == "admin.drain":
            url, out = old["upstream"], old["draining"]
            self.change(request, pool, lambda now, who: pool.take_out(url, out, now, who), "decision")
        else:
            number = wanted.decision
            self.change(request, pool, lambda now, who: controller.roll_back(number, now, who), "decision")
        return self.show(pool)

    async def list_decisions(self, request: web.Request) -> web.Response:
        """What was decided and why."""
        pool = self.pool(request)
        limit = integer(request, "limit", 50, 1, MAX_DECISIONS)
        since = integer(request, "since", -1, 0, 10**15)
        log = pool.controller.decisions
        found = log.latest(limit) if since < 0 else log.since(since)[:limit]
        last = max((decision.id for decision in found), default=max(since, 0))
        return answer(DecisionsOut(decisions=[show_decision(decision) for decision in found], last_id=last))

    def _begin(self, request: web.Request, pool: PoolView) -> float | None:
        """Check what every change carries; return for how long it is to hold, None for good."""
        require_match(request, etag(pool))
        return seconds(request, "for_s", 1.0, MAX_FOR_S)

    def _end(self, pool: PoolView, kind: Kind, for_s: float | None, undo: dict[str, object]) -> None:
        if for_s is None:
            self.operator.expiry.cancel(pool.name, kind)
        else:
            self.operator.expiry.put(pool.name, kind, for_s, undo)


def check_bounds(pool: PoolView, pins: dict[str, float]) -> None:
    """Raise ApiError 422 for a pin outside the range that the pool's configuration allows."""
    for name, value in pins.items():
        allowed = getattr(pool.config.setpoints, name)
        if not allowed.min <= value <= allowed.max:
            accepted = f"{allowed.min:g} to {allowed.max:g}, the pool's setpoints.{name}"
            raise field_error(name, f"got {value:g}; accepted: {accepted}", accepted=accepted)
