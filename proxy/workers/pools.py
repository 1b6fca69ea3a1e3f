"""A pool as the leader sees it: one controller over what all workers report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.decision import Decision
from controller.load import MAX_RUNNING, Load
from controller.observation import Observation
from controller.shared import Leader, orders
from proxy.config.model import PoolConfig
from proxy.upstream.keepers import Keepers
from proxy.upstream.leaving import UnknownUpstream, note_drain
from proxy.workers.predictors import Predictors
from proxy.workers.shares import share_out

__all__ = ["LedPool"]

_STATES = ("up", "overloaded", "ejected", "down", "drained", "draining")
"""From good to bad: an upstream is shown as the worst that any worker thinks of it, drained once all are done."""
_SUMMED = frozenset({"inflight", "work_tokens", "served", "connections_open", "connections_idle"})


class LedPool:
    """Implements `proxy.admin.operator.PoolView`. `on_change` is called when workers must be told something."""

    def __init__(self, config: PoolConfig, controller: Leader, on_change: Callable[[LedPool], None]) -> None:
        self.config = config
        self.controller = controller
        self._on_change = on_change
        self._loads: dict[int, Load] = {}
        self._own: dict[int, Load] = {}
        """Of each worker, as far as it is of the kind that the controller is about."""
        self._stats: dict[int, dict[str, Any]] = {}
        self._held_back = False
        self.predictors = Predictors()
        """What the workers' predictors counted and say."""
        self.keepers = Keepers([upstream.url for upstream in config.upstreams])
        """Which upstream keeps what, as all workers have learned."""
        self.taken_out: tuple[str, ...] = ()
        """URLs of upstreams that an operator has taken out."""
        self.told: dict[int, tuple[int, dict[str, Any]]] = {}
        """What each worker was told last: its part of the batch size, and the orders."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.config.name

    def reported(self, worker: int, report: Mapping[str, Any]) -> None:
        """Take in the state of the pool at one worker."""
        own = self._own[worker] = Load(**report["own_load"])
        self._held_back = self._held_back or not own.app_limited
        self._loads[worker] = Load(**report["load"])
        self._stats[worker] = report["stats"]
        self.controller.arrived(report["arrivals"])
        for now, rule, before, after, text in report.get("said", ()):
            self.controller.note(now, "controller", rule, before, after, f"Worker {worker}: {text}")

    def observed(self, worker: int, obs: Observation) -> Observation:
        """Let the controller learn from a finished request; return it as the whole pool saw it.

        Where the upstream makes the batches, a worker knows only its own share of what ran beside the request.
        """
        if self.controller.mode == "gate" and obs.dispatched is not None:
            beside = sum(load.inflight for other, load in self._own.items() if other != worker)
            obs = replace(obs, batch=obs.batch + beside)
        self.controller.observe(obs)
        return obs

    def lost(self, worker: int) -> None:
        """Forget the state of a worker that is gone, but not what it counted."""
        if worker in self._stats:
            self.predictors.lost(self._stats[worker]["predictor"])
        for table in (self._loads, self._own, self._stats, self.told):
            table.pop(worker, None)

    def parts(self, workers: Iterable[int]) -> dict[int, int]:
        """Return each worker's part of max_batch_size. A batch is one worker's; a place in flight is everybody's."""
        size, numbers = self.controller.setpoints.max_batch_size, sorted(workers)
        if self.controller.mode == "merge":
            return dict.fromkeys(numbers, size)
        demands = [self._demand(number) for number in numbers]
        return dict(zip(numbers, share_out(size, demands), strict=True))

    def orders(self) -> dict[str, Any]:
        """Return what all workers must know."""
        return {**orders(self.controller), "taken_out": list(self.taken_out)}

    def tick(self, now: float) -> Any:
        """Let the controller decide. Returns its decision, if any."""
        load = self._sum(self._own)
        self._held_back = False
        return self.controller.tick(now, load)

    def load(self, now: float) -> Load:
        """Return queue and calls in flight, of all workers together."""
        return self._sum(self._loads)

    def _sum(self, of: Mapping[int, Load]) -> Load:
        loads = list(of.values())
        running = sorted(pair for load in loads for pair in zip(load.running, load.running_batches, strict=False))
        return Load(
            queued=sum(load.queued for load in loads),
            queued_tokens=sum(load.queued_tokens for load in loads),
            inflight=sum(load.inflight for load in loads),
            inflight_tokens=sum(load.inflight_tokens for load in loads),
            inflight_calls=sum(load.inflight_calls for load in loads),
            running=tuple(start for start, _ in running[:MAX_RUNNING]),
            running_batches=tuple(size for _, size in running[:MAX_RUNNING]),
            slots=max(1, sum(load.slots for load in loads)),
            inflight_express=sum(load.inflight_express for load in loads),
            app_limited=not self._held_back,
        )

    def stats(self) -> dict[str, Any]:
        """Return the state, JSON-ready: numbers are sums over the workers, ages the greatest."""
        found = list(self._stats.values())
        queues = [stats["queue"] for stats in found]
        return {
            "queue": {
                **{key: sum(queue[key] for queue in queues) for key in ("requests", "items", "tokens")},
                "by_class": {
                    name: sum(queue["by_class"].get(name, 0) for queue in queues) for name in self.config.classes
                },
                "oldest_age_s": max((queue["oldest_age_s"] for queue in queues), default=0.0),
                "ages_s": _greatest(queue["ages_s"] for queue in queues),
                "max_requests": self.config.queue.max_requests,
            },
            **{key: sum(stats[key] for stats in found) for key in ("inflight", "inflight_calls", "leases")},
            "draining": any(stats["draining"] for stats in found),
            "predictor": self.predictors.joined(stats["predictor"] for stats in found),
            "upstreams": self._upstreams(),
        }

    def take_out(self, url: str, out: bool, now: float, actor: str) -> Decision:
        """Let an upstream have nothing new and finish what it has, or take it back in. Raises UnknownUpstream."""
        name, known = url.rstrip("/"), [upstream.url for upstream in self.config.upstreams]
        if name not in known:
            raise UnknownUpstream(url, known)
        before = name in self.taken_out
        self.taken_out = (*(one for one in self.taken_out if one != name), *((name,) if out else ()))
        return note_drain(self.controller, name, before, out, now, actor)

    def knobs_changed(self) -> None:
        """Tell the workers."""
        self._on_change(self)

    def _demand(self, worker: int) -> int:
        load = self._own.get(worker)
        return 0 if load is None else load.inflight + load.queued

    def _upstreams(self) -> list[dict[str, Any]]:
        by_url: dict[str, list[dict[str, Any]]] = {}
        for stats in self._stats.values():
            for upstream in stats["upstreams"]:
                by_url.setdefault(upstream["url"], []).append(upstream)
        return [_upstream(seen) for seen in by_url.values()]


def _greatest(ages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the greatest age under every name."""
    found: dict[str, float] = {}
    for one in ages:
        for name, age in one.items():
            found[name] = max(age, found.get(name, 0.0))
    return found


def _upstream(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one upstream as all workers see it: what is counted adds up, of other numbers the greatest is shown."""
    merged: dict[str, Any] = {}
    for key, first in seen[0].items():
        values = [one[key] for one in seen if key in one]
        if key == "state":
            merged[key] = max(values, key=lambda state: _STATES.index(state) if state in _STATES else 0)
        elif key in _SUMMED:
            merged[key] = sum(values)
        elif all(isinstance(value, int | float) for value in values):
            merged[key] = max(values)
        else:
            merged[key] = first
    return merged
