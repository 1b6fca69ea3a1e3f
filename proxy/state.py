"""What survives a restart: what operators set, where the knobs stood, and the requests the controller learned from.

The controller's models are not stored as numbers. The last observations are, and a new controller is shown them
again: whatever it learns from observations it then knows, in any version and under any law.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeGuard

from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.slo import SLO
from proxy.config.model import BatchSizeRange, PoolConfig, SetpointsConfig, WindowRange

__all__ = ["VERSION", "capture", "restore", "restored_config"]

VERSION = 1
ACTOR = "admin:restore"
_LOG = logging.getLogger("trimtab")
_MAX_AGE_S = 86_400.0
_FIELDS = tuple(field.name for field in fields(Observation))
_ROW = attrgetter(*_FIELDS)
_TIMES = ("arrival", "done", "dispatched", "first_byte", "last_byte")


def capture(
    config: PoolConfig, controller: PoolController, recent: Iterable[Observation], now: float, wall: float
) -> dict[str, Any]:
    """Return the state of one pool, JSON-ready. `now` is the clock of the observations, `wall` Unix seconds."""
    slo, setpoints = controller.slo, controller.setpoints
    return {
        "version": VERSION,
        "wall": wall,
        "now": now,
        "configured": _configured(config),
        "slo": {"e2e_s": slo.e2e_s, "ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "queue_s": slo.queue_s,
                "quantile": slo.quantile},
        "law": controller.law_name,
        "frozen": controller.frozen,
        "pins": dict(controller.pins),
        "setpoints": {"max_batch_size": setpoints.max_batch_size, "window_ms": setpoints.window_ms},
        "generation": setpoints.generation,
        "fields": list(_FIELDS),
        "observations": [_ROW(obs) for obs in recent],
    }  # fmt: skip


def _configured(config: PoolConfig) -> dict[str, Any]:
    """Return what the file said: a key that changed there since wins over what an operator had set."""
    return {
        "slo": config.slo.model_dump(mode="json"),
        "law": [config.law, config.law_options],
        "setpoints": config.setpoints.model_dump(mode="json"),
    }


def restored_config(config: PoolConfig, saved: Mapping[str, Any] | None) -> PoolConfig:
    """Return `config` with its knobs starting where they stood, unless the file has other setpoints now."""
    if not _usable(saved) or saved["configured"]["setpoints"] != _configured(config)["setpoints"]:
        return config
    bounds, stood = config.to_bounds(), saved["setpoints"]
    size, window = config.setpoints.max_batch_size, config.setpoints.window_ms
    setpoints = SetpointsConfig(
        max_batch_size=BatchSizeRange(
            min=size.min, max=size.max, initial=bounds.clamp_batch_size(stood["max_batch_size"])
        ),
        window_ms=WindowRange(min=window.min, max=window.max, initial=bounds.clamp_window_ms(stood["window_ms"])),
    )
    return config.model_copy(update={"setpoints": setpoints})


def restore(
    config: PoolConfig, controller: PoolController, saved: Mapping[str, Any] | None, now: float, wall: float
) -> int:
    """Bring a fresh controller to where the saved one was; return how many observations it was shown.

    A part that does not fit any more (a pin out of bounds, a law that is gone) is logged and left out.
    """
    if not _usable(saved):
        return 0
    configured = _configured(config)
    then = saved["configured"]
    if then["slo"] == configured["slo"]:
        _try("promise", lambda: _restore_slo(controller, SLO(**saved["slo"]), now))
    if then["law"] == configured["law"] and saved["law"] != controller.law_name:
        _try("law", lambda: controller.set_law(saved["law"], {}, now, ACTOR))
    if saved["pins"]:
        _try("pins", lambda: controller.pin(saved["pins"], now, ACTOR))
    if saved["frozen"]:
        controller.freeze(True, now, ACTOR)
    observations = _observations(saved, controller.setpoints.generation, now, wall)
    for obs in observations:
        controller.observe(obs)
    return len(observations)


def _usable(saved: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return saved is not None and saved.get("version") == VERSION


def _restore_slo(controller: PoolController, slo: SLO, now: float) -> None:
    if slo != controller.slo:
        controller.set_slo(slo, now, ACTOR)


def _try(what: str, change: Any) -> None:
    try:
        change()
    except (ValueError, TypeError, KeyError) as error:
        _LOG.warning("the saved %s no longer fits and is left out: %s", what, error)


def _observations(saved: Mapping[str, Any], generation: int, now: float, wall: float) -> list[Observation]:
    """Return the saved observations on the new clock, oldest first.

    They keep their age. Those that ran under the last knobs count as having run under the present ones, which are
    the same; older ones are of a generation that never was, so that no law takes them for evidence.
    """
    if saved["fields"] != list(_FIELDS):
        return []  # another version of Observation; its numbers may mean something else
    shift = now - saved["now"] - max(0.0, wall - saved["wall"])
    found = []
    for row in saved["observations"]:
        values = dict(zip(_FIELDS, row, strict=True))
        values["result"] = Result(values["result"])
        obs = Observation(**values)
        if now - (obs.done + shift) > _MAX_AGE_S:
            continue
        times = {name: getattr(obs, name) + shift for name in _TIMES if getattr(obs, name) is not None}
        current = obs.generation == saved["generation"]
        found.append(replace(obs, generation=generation if current else -1, **times))
    return found
