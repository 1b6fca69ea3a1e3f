"""The running proxy's state in the shapes of the admin API."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from controller.decision import Decision
from controller.laws import LAWS, STEERING, law_options
from controller.slo import SLO
from proxy.admin.schemas import (
    DecisionOut,
    LawOut,
    LawsOut,
    OptionOut,
    PlanOut,
    PoolOut,
    PoolSummary,
    SetpointsOut,
    SloOut,
    TargetsPatch,
)
from proxy.pool_view import PoolView

__all__ = ["etag", "laws", "merged_slo", "plans_etag", "pool_detail", "pool_summary", "restored_slo", "show_decision"]


def pool_summary(pool: PoolView, now: float) -> PoolSummary:
    """Return `pool` at a glance."""
    return PoolSummary(**_common(pool, now))


def pool_detail(pool: PoolView, now: float, expiring: Sequence[dict[str, Any]] = ()) -> PoolOut:
    """Return `pool` in full."""
    bounds = pool.config.to_bounds()
    load = asdict(pool.load(now))
    load["running"] = [round(now - start, 6) for start in load.pop("running")]
    return PoolOut(
        **_common(pool, now),
        bounds=asdict(bounds),
        dispatch=pool.config.dispatch,
        laws=sorted(STEERING),
        classes={klass: show_slo(slo) for klass, slo in sorted(pool.controller.class_slos.items())},
        frozen=pool.controller.frozen,
        expiring=list(expiring),
        live=pool.controller.snapshot(now),
        load=load,
        stats=pool.stats(),
    )


def _common(pool: PoolView, now: float) -> dict[str, Any]:
    controller, load = pool.controller, pool.load(now)
    setpoints = controller.setpoints
    return {
        "name": pool.name,
        "law": controller.law_name,
        "slo": show_slo(controller.slo),
        "setpoints": SetpointsOut(
            max_batch_size=setpoints.max_batch_size, window_ms=setpoints.window_ms, generation=setpoints.generation
        ),
        "pins": dict(controller.pins),
        "queued": load.queued,
        "inflight": load.inflight,
    }


def show_slo(slo: SLO) -> SloOut:
    """Return the SLO in milliseconds."""
    return SloOut(
        ttft_ms=_ms(slo.ttft_s), tpot_ms=_ms(slo.tpot_s), e2e_ms=_ms(slo.e2e_s), queue_ms=_ms(slo.queue_s),
        quantile=slo.quantile,
    )  # fmt: skip


def merged_slo(slo: SLO, patch: TargetsPatch) -> SLO:
    """Return `slo` with what `patch` names changed (JSON merge patch)."""
    given = patch.model_fields_set
    targets = {
        f"{name}_s": _seconds(getattr(patch, f"{name}_ms")) if f"{name}_ms" in given else getattr(slo, f"{name}_s")
        for name in ("ttft", "tpot", "e2e", "queue")
    }
    return SLO(**targets, quantile=patch.quantile if "quantile" in given else slo.quantile)


def restored_slo(shown: Mapping[str, Any]) -> SLO:
    """Return the SLO that a decision's `old` or `new` describes, in milliseconds."""
    targets = {f"{name}_s": _seconds(shown.get(f"{name}_ms")) for name in ("ttft", "tpot", "e2e", "queue")}
    return SLO(**targets, quantile=shown["quantile"])


def laws() -> LawsOut:
    """Return every law and what it can be told."""
    return LawsOut(
        laws=[
            LawOut(
                name=name,
                text=re.sub(r":$", ".", (inspect.getdoc(LAWS[name]) or "").partition("\n\n")[0].replace("\n", " ")),
                options=[OptionOut(**option.as_dict()) for option in law_options(name)],
                trials_only=name not in STEERING,
            )
            for name in sorted(LAWS)
        ]
    )


def show_decision(decision: Decision) -> DecisionOut:
    """Return one decision."""
    return DecisionOut(**decision.as_dict())


def etag(pool: PoolView) -> str:
    """Name the state an operator can change: SLO, pins and law. What the law does on its own is not part."""
    controller = pool.controller
    shadow = controller.shadow_name
    state = [
        pool.name,
        asdict(controller.slo),
        sorted((klass, sorted(asdict(slo).items())) for klass, slo in controller.class_slos.items()),
        [] if shadow is None else [shadow],
        sorted(controller.law_options.items()),
        sorted(controller.pins.items()),
        controller.law_name,
        controller.frozen,
        pool.taken_out,
    ]
    return f'"{hashlib.blake2s(json.dumps(state, default=str).encode(), digest_size=8).hexdigest()}"'


def plans_etag(plans: Sequence[PlanOut]) -> str:
    """Name a list of planned changes."""
    state = [plan.model_dump(mode="json") for plan in plans]
    return f'"{hashlib.blake2s(json.dumps(state).encode(), digest_size=8).hexdigest()}"'


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000.0, 6)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000.0
