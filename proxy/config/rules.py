"""A pool's configuration in the terms of those who act on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from controller.base import Controller
from controller.loop import PoolController
from controller.setpoints import Setpoints
from proxy.config.model import ClassConfig, PoolConfig
from proxy.config.profile import load_profile

__all__ = ["ClassRules", "controller_for"]


_C = TypeVar("_C", bound=Controller)


def controller_for(
    config: PoolConfig,
    now: float,
    kind: type[_C] = PoolController,  # type: ignore[assignment]
    journal: Callable[[str], object] | None = None,
) -> _C:
    """Make the controller that `config` asks for.

    A `journal` is handed what it is told and answers; that is for a `PoolController` of this process alone.
    """
    mode, bounds, setpoints = _mode(config), config.to_bounds(), config.to_setpoints()
    if mode == "gate":
        setpoints = _at_a_gate(config, setpoints)
    more: dict[str, Any] = {} if journal is None else {"journal": journal}
    make: Callable[..., _C] = kind
    return make(
        config.name,
        slo=config.to_slo(),
        setpoints=setpoints,
        bounds=bounds,
        law=config.law,
        law_options=config.law_options,
        mode=mode,
        class_slos=config.to_class_slos(),
        express_share=config.express_share,
        now=now,
        **more,
    )


def _at_a_gate(config: PoolConfig, setpoints: Setpoints) -> Setpoints:
    """Return where the setpoints of a gate start, as far as nobody says so."""
    size, window = setpoints.max_batch_size, setpoints.window_ms
    if "initial" not in config.setpoints.max_batch_size.model_fields_set:
        # The cap is the pool's: as many to begin with for each upstream as a single one would have.
        size = config.to_bounds().clamp_batch_size(size * len(config.upstreams))
    if "initial" not in config.setpoints.window_ms.model_fields_set:
        # Those who batch by themselves gain nothing from somebody who waits beside a free place.
        window = config.to_bounds().min_window_ms
    return Setpoints(size, window)


def _mode(config: PoolConfig) -> Literal["merge", "gate"]:
    """Return which of the two the pool mostly does: as configured, else as all the upstreams' profiles say."""
    if config.dispatch != "auto":
        return config.dispatch
    defaults = {load_profile(upstream.profile).dispatch.default for upstream in config.upstreams}
    return "merge" if defaults == {"merge"} else "gate"


class ClassRules:
    """A priority class as the hot path wants it."""

    __slots__ = ("deadline_s", "express", "slack_line", "slack_s")

    def __init__(self, config: ClassConfig) -> None:
        self.slack_s = config.slack_ms / 1000.0
        self.express = config.express
        self.deadline_s = None if config.deadline_ms is None else config.deadline_ms / 1000.0
        self.slack_line = b"X-Trimtab-Class-Slack-Ms: %d\r\n" % config.slack_ms if config.slack_ms else b""
        """What tells a worker of ours about the class."""
