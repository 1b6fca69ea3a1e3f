"""Looking at pools and steering them: SLO, setpoints, law, decisions."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from proxy.admin.base import Group, answer
from proxy.admin.changes import BODIES, SETPOINTS, Kind, check, steps
from proxy.admin.problem import ApiError, field_error
from proxy.admin.requests import actor_of, integer, moment, read_body, require_match, seconds
from proxy.admin.schemas import DecisionsOut, DrainIn, HistoryOut, PlanOut, PlansOut, PoolsOut, RollbackIn
from proxy.admin.temporary import undo_of
from proxy.admin.views import etag, laws, plans_etag, pool_summary, restored_slo, show_decision
from proxy.pool_view import PoolView

__all__ = ["MAX_DECISIONS", "PoolsApi"]

MAX_DECISIONS = 1000
MAX_FOR_S = 30 * 86_400.0
MAX_AHEAD_S = 366 * 86_400.0


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
        """Change targets of the SLO."""
        return await self._change(request, "slo", "body")

    async def list_laws(self, request: web.Request) -> web.Response:
        """Every law and what it can be told."""
        return answer(laws())

    async def patch_setpoints(self, request: web.Request) -> web.Response:
        """Pin setpoints, or give them back with null."""
        return await self._change(request, "setpoints", "body")

    async def delete_pins(self, request: web.Request) -> web.Response:
        """Give setpoints back to the law: all, or those named by `name`."""
        pool = self.pool(request)
        names = request.query.getall("name", [])
        for name in names:
            if name not in SETPOINTS:
                raise field_error(
                    "name", f"got {name[:40]!r}; accepted: {' or '.join(SETPOINTS)}", known=list(SETPOINTS)
                )
        require_match(request, etag(pool))
        freed = names or None
        self.change(request, pool, lambda now, actor: pool.controller.unpin(freed, now, actor), "name")
        self._end(pool, "setpoints", None, {})
        return self.show(pool)

    async def put_law(self, request: web.Request) -> web.Response:
        """Hand the setpoints to another law; they keep their values."""
        return await self._change(request, "law", "law")

    async def put_freeze(self, request: web.Request) -> web.Response:
        """Keep the law from turning setpoints, or let it go on."""
        return await self._change(request, "freeze", "frozen")

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
        """Undo a decision: SLO, law or freeze as they were before it, or the setpoints."""
        pool = self.pool(request)
        wanted = await read_body(request, RollbackIn)
        require_match(request, etag(pool))
        found = [one for one in pool.controller.decisions.since(wanted.decision - 1) if one.id == wanted.decision]
        controller = pool.controller
        if not found:
            raise field_error("decision", f"{wanted.decision} is not kept any more, or was never made")
        rule, old = found[0].rule, dict(found[0].old)
        if rule == "admin.slo":
            klass = old.get("class")
            slo = restored_slo(old) if old.get("own", True) else None
            self.change(request, pool, lambda now, who: controller.set_slo(slo, now, who, klass), "decision")
            self._end(pool, "slo", None, {})
        elif rule == "admin.law":
            law, options = old["law"], old.get("options", {})
            self.change(request, pool, lambda now, who: controller.set_law(law, options, now, who), "decision")
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
            if "pins" in old:
                self._end(pool, "setpoints", None, {})
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

    async def get_history(self, request: web.Request) -> web.Response:
        """Return the last ten minutes of one pool."""
        return answer(HistoryOut(**self.operator.history.columns(self.pool(request).name)))

    async def list_plans(self, request: web.Request) -> web.Response:
        """Return the changes to come, in all pools."""
        plans = [PlanOut(**asdict(plan)) for plan in self.operator.scheduled.plans()]
        return answer(PlansOut(plans=plans), headers={"ETag": plans_etag(plans)})

    async def delete_plan(self, request: web.Request) -> web.Response:
        """Forget one of them."""
        plans = [PlanOut(**asdict(plan)) for plan in self.operator.scheduled.plans()]
        require_match(request, plans_etag(plans))
        text = request.match_info["plan"]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0
        if not self.operator.scheduled.cancel(number, actor_of(request)):
            known = ", ".join(str(plan.id) for plan in plans) or "none"
            raise ApiError(404, f"There is no plan {text[:20]!r}; planned: {known}.")
        return await self.list_plans(request)

    async def _change(self, request: web.Request, kind: Kind, field: str) -> web.Response:
        """Make a change now, or plan it; for good or for a while."""
        pool = self.pool(request)
        body = await read_body(request, BODIES[kind])
        require_match(request, etag(pool))
        wall = self.operator.scheduled.wall()
        at, for_s = _when(request, wall)
        check(pool, kind, body)
        if at is not None:
            given = body.model_dump(mode="json", exclude_unset=True)
            try:
                plan = self.operator.scheduled.put(pool.name, kind, given, at, for_s, actor_of(request))
            except ValueError as error:
                raise ApiError(409, f"{error}.") from None
            return answer(PlanOut(**asdict(plan)), status=202)
        undo = undo_of(pool, kind)
        for step in steps(pool, kind, body):
            self.change(request, pool, step, field)
        self._end(pool, kind, for_s, undo)
        return self.show(pool)

    def _end(self, pool: PoolView, kind: Kind, for_s: float | None, undo: dict[str, object]) -> None:
        if for_s is None:
            self.operator.temporary.cancel(pool.name, kind)
        else:
            self.operator.temporary.put(pool.name, kind, for_s, undo)


def _when(request: web.Request, wall: float) -> tuple[float | None, float | None]:
    """Return when a change is to be made (None: now) and for how long it holds (None: for good)."""
    at = moment(request, "at", wall, MAX_AHEAD_S)
    for_s = seconds(request, "for_s", 1.0, MAX_FOR_S)
    until = moment(request, "until", wall, MAX_AHEAD_S)
    if until is not None:
        if for_s is not None:
            raise field_error("until", "give either for_s or until")
        for_s = until - (at or wall)
        if not 1.0 <= for_s <= MAX_FOR_S:
            accepted = f"1 s to {MAX_FOR_S:g} s after the change is made"
            raise field_error("until", f"got {for_s:.0f} s after; accepted: {accepted}", accepted=accepted)
    return at, for_s
