"""What prometheus-client asks on a scrape: the families that `proxy.observe.metrics` keeps, and what is running."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies import __version__
from proxy.compiled import is_active
from proxy.observe.instruments import CounterFamily, HistogramFamily

__all__ = ["BuildInfo", "FamilyCollector", "StateKept"]


class FamilyCollector(Collector):
    """Shows one family to the registry."""

    def __init__(self, family: Callable[[], CounterFamily | HistogramFamily]) -> None:
        self._family = family

    def collect(self) -> Iterable[Any]:
        """Yield what `family` returns, as prometheus-client writes it out."""
        return self._family().collect()


class BuildInfo(Collector):
    """Shows versions, and whether the request path is compiled."""

    def collect(self) -> Iterable[Any]:
        """Yield one gauge that is always 1."""
        labels = ("version", "python", "compiled")
        family = GaugeMetricFamily("trimtab_build_info", "Always 1; what is running.", labels=labels)
        family.add_metric((__version__, platform.python_version(), "yes" if is_active() else "no"), 1.0)
        yield family


class StateKept(Collector):
    """Shows whether what must survive a restart is being written down, where it is to be."""

    def __init__(self, kept: Callable[[], bool | None]) -> None:
        self._kept = kept

    def collect(self) -> Iterable[Any]:
        """Yield one gauge, without a value where nothing is to be kept."""
        family = GaugeMetricFamily(
            "trimtab_state_kept", "1 while what must survive a restart is written down, else 0."
        )
        kept = self._kept()
        if kept is not None:
            family.add_metric((), float(kept))
        yield family
