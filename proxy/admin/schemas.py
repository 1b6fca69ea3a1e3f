"""What goes into and comes out of the admin API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from proxy.config.base import Section

__all__ = [
    "AuditOut",
    "ConfigOut",
    "DecisionOut",
    "DecisionsOut",
    "DrainIn",
    "ExperimentIn",
    "FieldError",
    "FiguresOut",
    "FreezeIn",
    "Health",
    "HistoryOut",
    "LawIn",
    "LawOut",
    "LawsOut",
    "OptionOut",
    "PlanOut",
    "PlansOut",
    "PoolOut",
    "PoolSummary",
    "PoolsOut",
    "ProblemOut",
    "Readiness",
    "ReloadOut",
    "RollbackIn",
    "SetpointsOut",
    "SetpointsPatch",
    "ShadowIn",
    "SloOut",
    "SloPatch",
    "TargetsPatch",
    "WhatIfIn",
    "WhatIfOut",
]

_DAY_MS = 86_400_000.0
_LEAST_MS = 0.001


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class TargetsPatch(Section):
    """Targets to change; those left out stay, null takes one away (JSON merge patch, RFC 7396)."""

    ttft_ms: float | None = Field(default=None, ge=_LEAST_MS, le=_DAY_MS, description="Arrival to the first token.")
    tpot_ms: float | None = Field(
        default=None, ge=_LEAST_MS, le=_DAY_MS, description="Mean per output token after the first."
    )
    e2e_ms: float | None = Field(
        default=None, ge=_LEAST_MS, le=_DAY_MS, description="Arrival to the end of the answer."
    )
    queue_ms: float | None = Field(default=None, ge=_LEAST_MS, le=_DAY_MS, description="Wait in the proxy's queue.")
    quantile: float = Field(
        default=0.99, ge=0.5, lt=1.0, description="Share of requests that must meet every target."
    )


class SloPatch(TargetsPatch):
    """Targets to change; those left out stay, null takes one away (JSON merge patch, RFC 7396)."""

    classes: dict[str, TargetsPatch | None] = Field(
        default={},
        max_length=64,
        description="The same by priority class, laid over its SLO now; null gives a class the pool's SLO again.",
    )


class SetpointsPatch(Section):
    """Values to pin; null gives a setpoint back to the law, one left out stays as it is."""

    max_batch_size: int | None = Field(default=None, ge=1, le=65_536, description="Within the pool's min..max.")
    window_ms: float | None = Field(default=None, ge=0.0, le=60_000.0, description="Within the pool's min..max.")


class LawIn(Section):
    """The law that shall turn the setpoints from now on."""

    law: str = Field(min_length=1, max_length=64, description="Name of a law.")
    options: dict[str, Any] = Field(default={}, description="Its options; an option left out takes its default.")


class FreezeIn(Section):
    """Whether the law may turn setpoints. Admission and batch forming go on either way."""

    frozen: bool = Field(description="true keeps every setpoint where it is.")


class DrainIn(Section):
    """Whether an upstream is taken out: nothing new goes there, what runs is finished. A reload keeps it so."""

    upstream: str = Field(min_length=1, max_length=2048, description="Its URL, as in the configuration.")
    draining: bool = Field(description="true takes it out, false back in.")


class ShadowIn(Section):
    """A law that advises without turning anything; its advice is logged as decisions `shadow.*`."""

    law: str | None = Field(min_length=1, max_length=64, description="Name of a law; null ends the shadow.")
    options: dict[str, Any] = Field(default={}, description="Its options.")


class ExperimentIn(Section):
    """Let another law take turns with the one in force, on live traffic, until one is better."""

    law: str = Field(min_length=1, max_length=64, description="The candidate.")
    options: dict[str, Any] = Field(default={}, description="Its options.")
    block_s: float = Field(default=120.0, ge=10.0, le=86_400.0, description="Length of a turn.")
    pairs: int = Field(default=60, ge=3, le=10_000, description="Most pairs of turns before it ends undecided.")


class RollbackIn(Section):
    """Where to go back to."""

    decision: int = Field(ge=1, le=10**15, description="Id of the decision to undo.")


class WhatIfIn(Section):
    """A change to try on paper: SLO, pins and law, each as in its own operation."""

    slo: TargetsPatch | None = Field(default=None, description="Targets to change.")
    setpoints: SetpointsPatch | None = Field(default=None, description="Setpoints to pin.")
    law: LawIn | None = Field(default=None, description="Another law.")


class SloOut(_Out):
    """The SLO in force."""

    ttft_ms: float | None = Field(default=None, description="Arrival to the first token; null: no target.")
    tpot_ms: float | None = Field(default=None, description="Mean per output token after the first.")
    e2e_ms: float | None = Field(default=None, description="Arrival to the end of the answer.")
    queue_ms: float | None = Field(default=None, description="Wait in the proxy's queue.")
    quantile: float = Field(description="Share of admitted requests that must meet every target.")


class SetpointsOut(_Out):
    """The setpoints in force."""

    max_batch_size: int = Field(description="Largest batch, or most sequences in flight.")
    window_ms: float = Field(description="How long the first waiting item may be held for company.")
    generation: int = Field(description="Counts changes; every request is attributed to the one it ran under.")


class PoolSummary(_Out):
    """A pool at a glance."""

    name: str = Field(description="Its name in the configuration.")
    law: str = Field(description="The law that turns the setpoints.")
    slo: SloOut
    setpoints: SetpointsOut
    pins: dict[str, float] = Field(description="Setpoints held by an operator.")
    queued: int = Field(description="Requests waiting (items, where the proxy makes the batches).")
    inflight: int = Field(description="Items or sequences at the upstreams.")


class PoolOut(PoolSummary):
    """A pool in full."""

    classes: dict[str, SloOut] = Field(description="The SLOs of classes that have one of their own.")
    frozen: bool = Field(description="Whether the law is kept from turning setpoints.")
    expiring: list[dict[str, Any]] = Field(description="Changes that will take themselves back, and when.")
    bounds: dict[str, float] = Field(description="How far the setpoints may go.")
    dispatch: str = Field(description="merge, gate or auto.")
    laws: list[str] = Field(description="The laws that the pool may be given to.")
    live: dict[str, Any] = Field(
        description="The controller's view: quantiles with n and interval, counts, attainment, law and model."
    )
    load: dict[str, Any] = Field(description="Queue and calls in flight right now.")
    stats: dict[str, Any] = Field(
        description="Queue by class, leases, and every upstream: its state "
        "(up, overloaded, ejected, down, draining, drained), and what it says about its own load."
    )


class PoolsOut(_Out):
    """Every pool."""

    pools: list[PoolSummary]


class OptionOut(_Out):
    """One option of a law."""

    name: str = Field(description="Its name.")
    kind: str = Field(description="boolean, integer, number or choice.")
    default: bool | int | float | str = Field(description="Its value when it is left out.")
    accepted: str = Field(description="What is accepted, in words.")
    low: float | None = Field(description="Least value; null where there is none.")
    high: float | None = Field(description="Greatest value.")
    choices: list[str] = Field(description="The values of a choice.")
    text: str = Field(description="What it does.")


class LawOut(_Out):
    """A law and what it can be told."""

    name: str = Field(description="Its name.")
    text: str = Field(description="What it does.")
    options: list[OptionOut] = Field(description="Its options.")
    trials_only: bool = Field(
        description="Whether it is never given a pool: only the shadow and experiments take it."
    )


class LawsOut(_Out):
    """Every law there is."""

    laws: list[LawOut]


class FiguresOut(_Out):
    """What became of the requests in a simulation."""

    offered: int = Field(description="Requests that came.")
    goodput: float = Field(description="On-time answers a second.")
    late_share: float = Field(description="Late, of those served.")
    refused_share: float = Field(description="Refused on arrival, of those offered.")
    shed_share: float = Field(description="Let in and dropped later, of those offered.")
    failed_share: float = Field(description="Failed, of those offered.")
    p50_s: float | None = Field(description="Median from arrival to the end; null when none was served.")
    p99_s: float | None = Field(description="99th percentile of the same.")
    mean_batch_limit: float = Field(description="Mean of max_batch_size over time.")


class WhatIfOut(_Out):
    """The last minutes' requests, played under the settings in force and under the proposed ones."""

    requests: int = Field(description="How many were played.")
    span_s: float = Field(description="Over which time they had come.")
    now: FiguresOut
    then: FiguresOut


class DecisionOut(_Out):
    """One decision: what was seen, which rule fired, what changed, and what came of it."""

    id: int = Field(description="Numbered per pool, without gaps.")
    at: float = Field(description="Monotonic seconds of the proxy's clock.")
    wall: float = Field(description="Unix seconds.")
    pool: str = Field(description="The pool.")
    rule: str = Field(description="Which rule fired; admin.* for operators.")
    law: str = Field(description="The law in force.")
    actor: str = Field(description="`controller`, or `admin:` and who.")
    seen: dict[str, Any] = Field(description="The inputs of the rule.")
    old: dict[str, Any] = Field(description="Before.")
    new: dict[str, Any] = Field(description="After.")
    text: str = Field(description="Why, in one sentence.")
    outcome: str = Field(description="What came of it; empty until that is known.")


class DecisionsOut(_Out):
    """Decisions, newest first; with `since`, oldest first."""

    decisions: list[DecisionOut]
    last_id: int = Field(description="Give it as `since` to see only what is newer.")


class HistoryOut(_Out):
    """The last minutes of a pool, oldest first: columns of equal length, a point every `every_s` seconds."""

    now: float = Field(description="Unix seconds of this answer, by the same clock as `at`.")
    every_s: float = Field(description="Seconds between two points.")
    at: list[float] = Field(description="Unix seconds.")
    max_batch_size: list[int] = Field(description="The batch size setpoint.")
    window_ms: list[float] = Field(description="The batching window setpoint.")
    queued: list[int] = Field(description="Requests waiting (items, where the proxy makes the batches).")
    inflight: list[int] = Field(description="Items or sequences at the upstreams.")
    target_ms: dict[str, list[float | None]] = Field(description="The target, by latency; null: none.")
    p50_ms: dict[str, list[float | None]] = Field(
        description="Median of the minute before, by latency; null: no requests."
    )
    p99_ms: dict[str, list[float | None]] = Field(description="99th percentile of the same.")


class AuditOut(_Out):
    """What operators decided, newest first; of earlier runs too where state is kept."""

    decisions: list[DecisionOut]


class PlanOut(_Out):
    """A change that will be made later."""

    id: int = Field(description="Cancels it.")
    pool: str = Field(description="The pool.")
    kind: Literal["slo", "setpoints", "law", "freeze"] = Field(description="What is to change.")
    body: dict[str, Any] = Field(description="The change, as it was sent.")
    at: float = Field(description="When, in Unix seconds.")
    for_s: float | None = Field(description="How long it is to hold; null for good.")
    actor: str = Field(description="Who planned it, and in whose name it will be made.")


class PlansOut(_Out):
    """The changes to come, the next first."""

    plans: list[PlanOut]


class ConfigOut(_Out):
    """The configuration in force, secrets masked. Live changes through this API are not part of it."""

    generation: int = Field(description="Counts configurations since the start.")
    config: dict[str, Any] = Field(description="Every key with its value.")


class ReloadOut(_Out):
    """What a reload did."""

    generation: int = Field(description="Of the configuration now in force.")
    changed: list[str] = Field(description="Keys that differ and took effect.")
    restart_required: list[str] = Field(description="Keys that differ and need a restart.")


class Health(_Out):
    """The process answers."""

    status: str = Field(description="Always `ok`.")


class Readiness(_Out):
    """Whether traffic should be sent here."""

    ready: bool = Field(description="Whether it should.")
    reasons: list[str] = Field(description="Why not.")


class FieldError(BaseModel):
    """One field that was not acceptable."""

    model_config = ConfigDict(extra="allow")

    field: str = Field(description="Where, dotted.")
    message: str = Field(description="What was got, and what is accepted.")


class ProblemOut(BaseModel):
    """Problem details (RFC 9457)."""

    type: str = Field(description="Always `about:blank`: the status says what kind it is.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong, in one sentence.")
    errors: list[FieldError] = Field(default=[], description="One entry for each field at fault.")
