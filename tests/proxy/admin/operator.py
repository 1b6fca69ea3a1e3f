"""A running proxy as far as the admin API can tell: real controllers and metrics, nothing behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation
from proxy.admin.history import History
from proxy.admin.operator import Reloaded
from proxy.admin.scheduled import ScheduledChanges
from proxy.admin.temporary import TemporaryChanges
from proxy.config.errors import ConfigError
from proxy.config.model import Config, PoolConfig
from proxy.observe.metrics import Metrics
from proxy.pool_view import PoolView
from tests.support.virtual_clock import VirtualClock

CONFIG: dict[str, Any] = {
    "pools": [
        {
            "name": "chat",
            "match": {"paths": ["/v1/chat/*"]},
            "upstreams": [{"url": "http://127.0.0.1:8000", "api_key": "sk-hidden"}],
            "slo": {"ttft_ms": 500, "e2e_ms": 10_000},
            "setpoints": {"max_batch_size": {"initial": 8, "max": 64}},
        },
        {"name": "embed", "upstreams": ["http://127.0.0.1:8001"]},
    ]
}


class FakePool:
    """A pool with a real controller and a load that the test sets."""

    def __init__(self, config: PoolConfig, now: float, mode: Literal["merge", "gate"] = "merge") -> None:
        self.config = config
        self.current = Load()
        self.pokes = 0
        self.state: dict[str, Any] = {}
        self.out: list[str] = []
        self.controller = PoolController(
            config.name,
            slo=config.to_slo(),
            setpoints=config.to_setpoints(),
            bounds=config.to_bounds(),
            law=config.law,
            mode=mode,
            now=now,
        )

    @property
    def name(self) -> str:
        return self.config.name

    def load(self, now: float) -> Load:
        return self.current

    def knobs_changed(self) -> None:
        self.pokes += 1

    @property
    def taken_out(self) -> tuple[str, ...]:
        return tuple(self.out)

    def take_out(self, url: str, out: bool, now: float, actor: str) -> Decision:
        known = [upstream.url for upstream in self.config.upstreams]
        if url not in known:
            raise ValueError(f"there is no upstream {url!r}; upstreams are {', '.join(known)}")
        before = url in self.out
        self.out = [one for one in self.out if one != url] + ([url] if out else [])
        old, new = ({"upstream": url, "draining": state} for state in (before, out))
        return self.controller.note(now, actor, "admin.drain", old, new, "drain")

    def stats(self) -> dict[str, Any]:
        return self.state or {"upstreams": [{"url": upstream.url} for upstream in self.config.upstreams]}


class FakeOperator:
    """Implements `proxy.admin.operator.Operator`."""

    def __init__(self, data: Mapping[str, Any] = CONFIG, mode: Literal["merge", "gate"] = "merge") -> None:
        self.clock = VirtualClock(1000.0)
        self.config = Config.model_validate(data)
        self.generation = 1
        self.metrics = Metrics(self.config.pools, process=False)
        self.pools = {pool.name: FakePool(pool, self.clock.now(), mode) for pool in self.config.pools}
        self.temporary = TemporaryChanges(self.clock, lambda: self.pools, self.decided)
        self.scheduled = ScheduledChanges(
            self.clock, lambda: self.pools, self.decided, self.temporary, lambda: 1e9 + self.clock.now()
        )
        self.history = History(self.clock, lambda: self.pools, self.scheduled.wall)
        self.observations: dict[str, list[Observation]] = {}
        self.audited: list[dict[str, Any]] = []
        self.reasons: list[str] = []
        self.next_reload: Reloaded | ConfigError = Reloaded(2, ("pools[0].slo",), ())

    def decided(self, pool: PoolView, decision: Decision) -> None:
        self.metrics.decided(pool.name, decision.rule)
        self.metrics.slo_changed(pool.name, pool.controller.slo)
        self.audited.append(decision.as_dict())
        pool.knobs_changed()

    def recent(self, pool: str) -> Sequence[Observation]:
        return self.observations.get(pool, [])

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        return self.metrics.render(accept)

    async def audit(self, limit: int) -> list[dict[str, Any]]:
        return self.audited[::-1][:limit]

    def unready(self) -> list[str]:
        return self.reasons

    async def reload(self) -> Reloaded:
        if isinstance(self.next_reload, ConfigError):
            raise self.next_reload
        self.generation = self.next_reload.generation
        return self.next_reload
