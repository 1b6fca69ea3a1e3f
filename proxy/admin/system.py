"""The proxy as a whole: configuration, reload, probes, metrics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from proxy.admin.base import AUDIT, Group, answer
from proxy.admin.problem import ApiError
from proxy.admin.requests import actor_of, integer, require_match
from proxy.admin.schemas import AuditOut, ConfigOut, DecisionOut, Health, Readiness, ReloadOut
from proxy.config.errors import ConfigError
from proxy.config.show import as_data

__all__ = ["SystemApi"]


class SystemApi(Group):
    """The operations on the process."""

    async def get_config(self, request: web.Request) -> web.Response:
        """The configuration in force."""
        shown = ConfigOut(generation=self.operator.generation, config=as_data(self.operator.config))
        return answer(shown, headers={"ETag": self._etag()})

    def _etag(self) -> str:
        return f'"generation-{self.operator.generation}"'

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration again; a bad one changes nothing."""
        actor = actor_of(request)
        require_match(request, self._etag(), "The configuration was reloaded since you read it.")
        try:
            done = await self.operator.reload()
        except ConfigError as error:
            AUDIT.warning("reload by %s refused: %s", actor, error)
            raise ApiError.invalid(error.problems) from None
        AUDIT.info("reload by %s: generation %d, changed %s", actor, done.generation, ", ".join(done.changed) or "-")
        return answer(
            ReloadOut(
                generation=done.generation,
                changed=list(done.changed),
                restart_required=list(done.restart_required),
            )
        )

    async def list_audit(self, request: web.Request) -> web.Response:
        """What operators decided, in all pools."""
        found = await self.operator.audit(integer(request, "limit", 50, 1, 1000))
        return answer(AuditOut(decisions=[one for one in map(_decision, found) if one is not None]))

    async def healthz(self, request: web.Request) -> web.Response:
        """Whether the process answers."""
        return answer(Health(status="ok"))

    async def readyz(self, request: web.Request) -> web.Response:
        """Whether traffic should be sent here."""
        reasons = self.operator.unready()
        return answer(Readiness(ready=not reasons, reasons=reasons), status=503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus or OpenMetrics text."""
        body, content_type = await self.operator.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _decision(entry: dict[str, Any]) -> DecisionOut | None:
    """Return an entry of the audit log; None for one that was damaged on disk."""
    try:
        return DecisionOut(**entry)
    except (TypeError, ValueError) as error:
        AUDIT.error("an entry of the audit log is damaged and left out: %s", error)
        return None
