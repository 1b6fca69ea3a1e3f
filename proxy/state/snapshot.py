"""What survives a restart: what operators set, where the knobs stood, and the requests the controller learned from.

The controller's models are not stored as numbers. The last observations are, and a new controller is shown them
again: whatever it learns from observations it then knows, in any version and under any law.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
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
_LONG_S = 1e12
_MUCH = 1e9
"""More tokens or items than any request has."""
_PORT = re.compile(r":\d+$")
_FIELDS = tuple(field.name for field in fields(Observation))
_ROW = attrgetter(*_FIELDS)
_TIMES = ("arrival", "done", "dispatched", "first_byte", "last_byte")


def capture(
    config: PoolConfig, controller: PoolController, recent: Iterable[Observation], now: float, wall: float
) -> dict[str, Any]:
    """Return the state of one pool, JSON-ready. `now` is the clock of the observations, `wall` Unix seconds."""
    slo, setpoints = controller.slo, controller.setpoints
    law, law_options = controller.standing_law
    return {
        "version": VERSION,
        "wall": wall,
        "now": now,
        "configured": _configured(config),
        "upstreams": _places(config),
        "slo": asdict(slo),
        "class_slos": {klass: asdict(promised) for klass, promised in controller.class_slos.items()},
        "law": law,
        "law_options": dict(law_options),
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
        "class_slos": {klass: asdict(slo) for klass, slo in config.to_class_slos().items()},
        "law": [config.law, config.law_options],
        "setpoints": config.setpoints.model_dump(mode="json"),
    }


def restored_config(config: PoolConfig, saved: Mapping[str, Any] | None) -> PoolConfig:
    """Return `config` with its knobs starting where they stood, unless the file has other setpoints now."""
    if not _usable(saved, config) or saved["configured"]["setpoints"] != _configured(config)["setpoints"]:
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
    if not _usable(saved, config):
        return 0
    configured = _configured(config)
    then = saved["configured"]
    if then["slo"] == configured["slo"]:
        _try("promise", partial(_restore_slo, controller, saved["slo"], now))
    if then.get("class_slos") == configured["class_slos"]:
        for klass in [own for own in controller.class_slos if own not in saved["class_slos"]]:
            controller.set_slo(None, now, ACTOR, klass)
        for klass, targets in saved["class_slos"].items():
            _try("promise", partial(_restore_slo, controller, targets, now, klass))
    known = (controller.law_name, controller.law_options)
    if then["law"] == configured["law"] and (saved["law"], saved.get("law_options", {})) != known:
        _try("law", lambda: controller.set_law(saved["law"], saved.get("law_options", {}), now, ACTOR))
    if saved["pins"]:
        _try("pins", lambda: controller.pin(saved["pins"], now, ACTOR))
    if saved["frozen"]:
        controller.freeze(True, now, ACTOR)
    observations = _observations(saved, controller.setpoints.generation, now, wall)
    for obs in observations:
        controller.observe(obs)
    return len(observations)


def _usable(saved: Mapping[str, Any] | None, config: PoolConfig) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is this version's, and of the same servers: what was learned about others would mislead."""
    if saved is None or saved.get("version") != VERSION:
        return False
    before = saved.get("upstreams")
    return before is None or not set(before).isdisjoint(_places(config))


def _places(config: PoolConfig) -> list[str]:
    """Return what tells upstreams apart; the bundled worker of `trimtab up` has another port each time."""
    return [
        _PORT.sub("", upstream.url) if upstream.profile == "trimtab-worker" else upstream.url
        for upstream in config.upstreams
    ]


def _restore_slo(
    controller: PoolController, targets: Mapping[str, Any], now: float, klass: str | None = None
) -> None:
    slo = SLO(**targets)
    if slo != (controller.slo if klass is None else controller.class_slos.get(klass)):
        controller.set_slo(slo, now, ACTOR, klass)


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
    damaged = 0
    for row in saved["observations"]:
        obs = _observation(row, saved["now"])
        if obs is None:
            damaged += 1
            continue
        if now - (obs.done + shift) > _MAX_AGE_S:
            continue
        times = {name: getattr(obs, name) + shift for name in _TIMES if getattr(obs, name) is not None}
        current = obs.generation == saved["generation"]
        found.append(replace(obs, generation=generation if current else -1, **times))
    if damaged:
        _LOG.warning("%d of the requests that were kept to learn from are damaged and left out", damaged)
    return found


def _observation(row: Any, saved_at: float) -> Observation | None:
    """Return a request that was kept; None for one that cannot have been, whose numbers would mislead for hours."""
    try:
        values = dict(zip(_FIELDS, row, strict=True))
        values["result"] = Result(values["result"])
        obs = Observation(**values)
        texts = (obs.pool, obs.klass, obs.tenant, obs.upstream)
        times = [time for time in (obs.arrival, obs.dispatched, obs.first_byte, obs.last_byte) if time is not None]
        amounts = (obs.batch, obs.prompt_tokens, obs.output_tokens)
        sound = (
            all(text is None or isinstance(text, str) for text in texts)
            and all(-_LONG_S < time <= obs.done for time in times)
            and obs.done <= saved_at + 1.0
            and all(amount is None or 0 <= amount <= _MUCH for amount in amounts)
            and isinstance(obs.generation, int)
        )
    except (TypeError, ValueError):
        return None
    return obs if sound else None
