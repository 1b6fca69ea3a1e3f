"""What is true of the workers right now."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from proxy.config.model import Config
from proxy.workers.member import Member

__all__ = ["WorkerGauges"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Crew(Protocol):
    """Whoever leads the workers, as far as that is shown."""

    restarts: int

    @property
    def config(self) -> Config:
        """The configuration in force."""
        ...

    @property
    def members(self) -> Mapping[int, Member]:
        """The workers there are, by number."""
        ...


class WorkerGauges(Collector):
    """One series a worker, told apart by its number; `process_*` is the supervisor's own."""

    def __init__(self, leader: Crew) -> None:
        self._leader = leader

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        up = GaugeMetricFamily("trimtab_proxy_worker_up", "1 while the worker serves.", labels=["worker"])
        inside = GaugeMetricFamily("trimtab_proxy_worker_requests", "Requests under way there.", labels=["worker"])
        memory = GaugeMetricFamily("trimtab_proxy_worker_resident_memory_bytes", "Its memory.", labels=["worker"])
        cpu = CounterMetricFamily("trimtab_proxy_worker_cpu_seconds", "CPU time since it started.", labels=["worker"])
        lost = CounterMetricFamily(
            "trimtab_proxy_worker_unlearned_observations",
            "Requests that were counted, but came too fast for the controller to hear of.",
            labels=["worker"],
        )
        members = self._leader.members
        for number in range(self._leader.config.workers):
            name, member = [str(number)], members.get(number)
            up.add_metric(name, float(member is not None and member.ready.is_set()))
            if member is None:
                continue
            inside.add_metric(name, float(member.inside))
            lost.add_metric(name, float(member.dropped))
            used = _used(member.pid)
            if used is not None:
                memory.add_metric(name, used[0])
                cpu.add_metric(name, used[1])
        restarts = CounterMetricFamily("trimtab_proxy_worker_restarts", "Workers replaced after they ended.")
        restarts.add_metric([], float(self._leader.restarts))
        yield from (up, inside, memory, cpu, lost, restarts)


def _used(pid: int) -> tuple[float, float] | None:
    """Return resident bytes and CPU seconds of a process; None where the system does not tell, or it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return float(int(fields[21]) * _PAGE), (int(fields[11]) + int(fields[12])) / _TICKS
