"""What all groups of admin operations share."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from pydantic import BaseModel

from controller.decision import Decision
from proxy.admin.operator import Operator
from proxy.admin.problem import ApiError, field_error
from proxy.admin.requests import actor_of
from proxy.admin.views import etag, pool_detail
from proxy.pool_view import PoolView

__all__ = ["AUDIT", "Group", "answer"]

AUDIT = logging.getLogger("trimtab.audit")


def answer(model: BaseModel, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return `model` as JSON."""
    return web.Response(
        status=status, headers=headers, body=model.model_dump_json().encode(), content_type="application/json"
    )


class Group:
    """A group of operations on one running proxy. Every change takes effect with the next dispatch."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    def now(self) -> float:
        """Return the present on the clock of the pools."""
        return self.operator.clock.now()

    def pool(self, request: web.Request) -> PoolView:
        """Return the pool that the path names. Raises ApiError 404 with those that exist."""
        name = request.match_info["pool"]
        pool = self.operator.pools.get(name)
        if pool is None:
            known = list(self.operator.pools)
            raise ApiError(
                404,
                f"There is no pool {name[:64]!r}; known pools: {', '.join(known)}.",
                errors=[{"field": "pool", "message": "unknown", "known": known}],
            )
        return pool

    def change(
        self, request: web.Request, pool: PoolView, change: Callable[[float, str], Decision], field: str
    ) -> Decision:
        """Make a change in an operator's name and write it to the audit log. A ValueError becomes a 422."""
        actor = actor_of(request)
        try:
            decision = change(self.now(), actor)
        except ValueError as error:
            raise field_error(field, str(error)) from None
        self.operator.decided(pool, decision)
        AUDIT.info(
            "pool %s: %s",
            pool.name,
            decision.text,
            extra={"pool": pool.name, "actor": actor, "decision": decision.id, "rule": decision.rule},
        )
        return decision

    def show(self, pool: PoolView) -> web.Response:
        """Return the pool in full, with the ETag of what an operator can change."""
        detail = pool_detail(pool, self.now(), self.operator.temporary.pending(pool.name))
        return answer(detail, headers={"ETag": etag(pool)})
