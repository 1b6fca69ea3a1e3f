"""What prometheus-client asks when somebody scrapes: the families that `proxy.metrics` keeps, and what is running."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies import __version__
from proxy.compiled import is_active
from proxy.instruments import CounterFamily, HistogramFamily

__all__ = ["BuildInfo", "FamilyCollector"]


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
