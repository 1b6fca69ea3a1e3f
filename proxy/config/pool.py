"""One pool: which requests it takes, where it sends them, its SLO and how it waits."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from proxy.config.base import NAME_PATTERN, Section
from proxy.config.predictor import PredictorConfig
from proxy.config.upstream import FallbackConfig, RoutingConfig, SignalsConfig, UpstreamConfig

__all__ = [
    "BatchSizeRange",
    "ClassConfig",
    "ConnectionsConfig",
    "FallbackConfig",
    "HealthConfig",
    "KeepaliveConfig",
    "MatchConfig",
    "PoolConfig",
    "QueueConfig",
    "RetriesConfig",
    "RoutingConfig",
    "SetpointsConfig",
    "SignalsConfig",
    "SloConfig",
    "TimeoutsConfig",
    "UpstreamConfig",
    "WindowRange",
]

_DAY_MS = 86_400_000.0
_LEAST_MS = 0.001
_START_BATCH_SIZE = 16
_START_WINDOW_MS = 5.0


class MatchConfig(Section):
    """Which requests a pool takes. The first pool that matches wins."""

    paths: tuple[str, ...] = Field(
        default=("*",),
        description="Globs over the request path; `*` also matches `/`. An empty list: only as another's fallback.",
    )
    models: tuple[str, ...] = Field(
        default=("*",), min_length=1, description="Globs over the model named in the request; `*` also when none is."
    )

    @field_validator("paths")
    @classmethod
    def _can_match(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            if not glob.startswith(("/", "*", "?", "[")):
                raise ValueError(f"{glob!r} matches nothing, because paths begin with /; write {'/' + glob!r}")
        return value


class SloConfig(Section):
    """The SLO: each target holds for `quantile` of the admitted requests. No target, no SLO."""

    ttft_ms: float | None = Field(default=None, ge=_LEAST_MS, le=_DAY_MS, description="Arrival to the first token.")
    tpot_ms: float | None = Field(
        default=None, ge=_LEAST_MS, le=_DAY_MS, description="Mean per output token after the first."
    )
    e2e_ms: float | None = Field(
        default=None, ge=_LEAST_MS, le=_DAY_MS, description="Arrival to the end of the answer."
    )
    queue_ms: float | None = Field(default=None, ge=_LEAST_MS, le=_DAY_MS, description="Wait in the proxy's queue.")
    quantile: float = Field(
        default=0.99, ge=0.5, lt=1.0, description="Share of admitted requests that must meet every target."
    )

    def to_slo(self) -> SLO:
        """Return it in the controller's terms (seconds)."""
        return SLO(
            e2e_s=_seconds(self.e2e_ms),
            ttft_s=_seconds(self.ttft_ms),
            tpot_s=_seconds(self.tpot_ms),
            queue_s=_seconds(self.queue_ms),
            quantile=self.quantile,
        )


class _Range(Section):
    """`initial` inside `min..max`. A bare number is short for `{initial: ...}`."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, data: Any) -> Any:
        return {"initial": data} if isinstance(data, int | float | str) else data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, start, high = (getattr(self, key) for key in ("min", "initial", "max"))
        if low > high:
            raise ValueError(f"min ({low:g}) must not exceed max ({high:g})")
        if not low <= start <= high:
            raise ValueError(f"initial ({start:g}) must lie within min..max ({low:g}..{high:g})")
        return self


class BatchSizeRange(_Range):
    """merge: most items in one upstream call. gate: most sequences in flight at the pool."""

    min: int = Field(default=1, ge=1, le=65_536, description="The controller never goes below.")
    max: int = Field(default=256, ge=1, le=65_536, description="The controller never goes above.")
    initial: int = Field(
        default_factory=lambda seen: max(seen["min"], min(seen["max"], _START_BATCH_SIZE)),
        ge=1,
        le=65_536,
        description=(
            f"Value at start; when not given, {_START_BATCH_SIZE}, in a gate pool for each upstream, "
            "brought into min..max."
        ),
    )


class WindowRange(_Range):
    """How long the first waiting item may be held for company, in milliseconds."""

    min: float = Field(default=0.0, ge=0.0, le=60_000.0, description="The controller never goes below.")
    max: float = Field(default=100.0, ge=0.0, le=60_000.0, description="The controller never goes above.")
    initial: float = Field(
        default_factory=lambda seen: max(seen["min"], min(seen["max"], _START_WINDOW_MS)),
        ge=0.0,
        le=60_000.0,
        description=f"Value at start; when not given, min in a gate pool, else {_START_WINDOW_MS:g} within min..max.",
    )


class SetpointsConfig(Section):
    """The setpoints the controller turns: where they start and how far they may go."""

    max_batch_size: BatchSizeRange = Field(default=BatchSizeRange(), description="Batch size setpoint.")
    window_ms: WindowRange = Field(default=WindowRange(), description="Batching window setpoint.")


class QueueConfig(Section):
    """Bounds of the waiting room."""

    max_requests: int = Field(default=1024, ge=1, le=1_000_000, description="More than this waiting: refuse at once.")
    max_wait_ms: float = Field(
        default=60_000.0, gt=0.0, le=_DAY_MS, description="Longest wait before giving up (504)."
    )
    upstream_wait_ms: float = Field(
        default=30_000.0,
        ge=0.0,
        le=_DAY_MS,
        description="Longest wait for an upstream to come back while none accepts a connection or passes its health "
        "check (503); 0 to refuse at once.",
    )


class ClassConfig(Section):
    """A priority class."""

    slack_ms: float = Field(
        default=0.0,
        ge=0.0,
        le=_DAY_MS,
        description="How long it defers to the most urgent class; also its ageing bound.",
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0.0,
        le=_DAY_MS,
        description="Answer due this long after arrival; the pool's e2e target when absent.",
    )
    max_queued: int | None = Field(default=None, ge=1, le=1_000_000, description="Its own bound in the queue.")
    express: bool = Field(default=False, description="Skip the batching window.")
    slo: SloConfig | None = Field(
        default=None, description="Its own SLO; targets that are absent here are the pool's."
    )


class TimeoutsConfig(Section):
    """How long an upstream may take over each step."""

    connect_ms: float = Field(default=2_000.0, gt=0.0, le=_DAY_MS, description="To accept a connection.")
    first_byte_ms: float = Field(
        default=300_000.0, gt=0.0, le=_DAY_MS, description="From dispatch to the first byte of the answer."
    )
    between_chunks_ms: float = Field(
        default=60_000.0, gt=0.0, le=_DAY_MS, description="Between two pieces of an answer."
    )
    total_ms: float | None = Field(
        default=None,
        gt=0.0,
        le=_DAY_MS,
        description="From arrival to the end of the answer, whatever it is doing; null for no end while it flows.",
    )


class RetriesConfig(Section):
    """Second tries; only while no byte has reached the client."""

    max: int = Field(default=1, ge=0, le=10, description="Tries beyond the first, per request.")
    on: tuple[Literal["connect", "overload", "refusal", "failure", "broken"], ...] = Field(
        default=("connect", "overload", "refusal", "failure"),
        description="What for. connect: the request reached nobody. overload: 429, 503 or 529. refusal: 401, 403, "
        "404 or 405, which another upstream may not say. failure: 500, an error inside a 200, an answer that is no "
        "HTTP; and a connection that broke, for what may be asked twice (embeddings, rankings, scores, predictions, "
        "GET). broken: that for chats and completions, too, which may then be computed and paid for twice. What an "
        "upstream keeps (stored responses) is never sent again once it was read.",
    )
    budget_ratio: float = Field(default=0.1, ge=0.0, le=1.0, description="Retries allowed per request sent.")
    budget_min_per_s: float = Field(
        default=1.0, ge=0.0, le=1000.0, description="Retries a second allowed at any load."
    )


class HealthConfig(Section):
    """When an upstream is taken out, and when it comes back."""

    path: str | None = Field(default=None, pattern=r"^/", description="Probed with GET; the profile's when absent.")
    interval_ms: float = Field(default=5_000.0, ge=100.0, le=_DAY_MS, description="Between two probes.")
    timeout_ms: float = Field(default=2_000.0, ge=10.0, le=_DAY_MS, description="A probe fails after this.")
    unhealthy_after: int = Field(
        default=3, ge=1, le=100, description="Failed probes in a row before it is taken out."
    )
    healthy_after: int = Field(default=1, ge=1, le=100, description="Good probes in a row before it comes back.")
    eject_after: int = Field(default=5, ge=1, le=1000, description="Failed requests in a row before it is ejected.")
    eject_ms: float = Field(
        default=1_000.0,
        ge=100.0,
        le=_DAY_MS,
        description="Between two trials of an ejected upstream; the first comes at once.",
    )


class ConnectionsConfig(Section):
    """The connections kept to each upstream."""

    max: int = Field(default=1024, ge=1, le=65_536, description="Most open at once, per upstream.")
    idle_ms: float = Field(
        default=4_000.0,
        ge=0.0,
        le=_DAY_MS,
        description="Closed after idling this long; below the server's own limit.",
    )
    max_age_ms: float = Field(
        default=300_000.0,
        ge=0.0,
        le=_DAY_MS,
        description="Not used again after this, so that a name that moved is followed; 0 for no limit.",
    )


class KeepaliveConfig(Section):
    """Comments in event streams that keep idle timers on the way from cutting a waiting client."""

    enabled: bool = Field(default=False, description="Whether to send them, also while the request is queued.")
    interval_ms: float = Field(default=15_000.0, ge=100.0, le=_DAY_MS, description="Silence before one is sent.")


class PoolConfig(Section):
    """Upstreams that can serve the same requests, with one queue and one SLO."""

    name: str = Field(default="default", pattern=NAME_PATTERN, description="Name in URLs, logs and metrics.")
    match: MatchConfig = Field(default=MatchConfig(), description="Which requests it takes.")
    upstreams: tuple[UpstreamConfig, ...] = Field(min_length=1, description="The inference servers.")
    wire: str = Field(
        default="auto",
        pattern=NAME_PATTERN,
        description="Wire format; auto: by path, what nobody claims is relayed untouched.",
    )
    dispatch: Literal["auto", "merge", "gate"] = Field(
        default="auto",
        description="merge: the proxy makes batches. gate: the upstream batches, the proxy bounds its concurrency. "
        "auto: merge lists of independent items where the upstream is known to take them, gate the rest.",
    )
    slo: SloConfig = Field(default=SloConfig(), description="The SLO.")
    setpoints: SetpointsConfig = Field(default=SetpointsConfig(), description="The setpoints.")
    max_batch_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="merge: most estimated tokens in one upstream call."
    )
    check_merged_every: int = Field(
        default=1000,
        ge=0,
        le=1_000_000_000,
        description="merge: of so many merged calls one has a member asked again alone, and the answers compared; "
        "0: never.",
    )
    depth: int = Field(default=2, ge=1, le=64, description="merge: upstream calls in flight per upstream.")
    queue: QueueConfig = Field(default=QueueConfig(), description="Bounds of the queue.")
    classes: dict[str, ClassConfig] = Field(
        default={
            "interactive": ClassConfig(express=True),
            "default": ClassConfig(slack_ms=1_000.0),
            "batch": ClassConfig(slack_ms=30_000.0),
        },
        min_length=1,
        max_length=16,
        description="Priority classes by name; a request picks one by its key or by x-trimtab-class.",
    )
    express_share: float = Field(
        default=0.5,
        ge=0.1,
        le=0.9,
        description="Most of the places or of a batch that express classes get while others wait; moved by evidence.",
    )
    default_class: str = Field(default="default", description="Class of a request that names none; one of `classes`.")
    policy: str = Field(
        default="priority", pattern=NAME_PATTERN, description="Who goes next: the name of a queue policy."
    )
    policy_options: dict[str, Any] = Field(default={}, description="Options of the policy.")
    predictor: PredictorConfig = Field(default=PredictorConfig(), description="Predicting how long answers will be.")
    law: str = Field(
        default="deadline", pattern=NAME_PATTERN, description="How the setpoints follow the latency: a control law."
    )
    law_options: dict[str, Any] = Field(default={}, description="Options of the law.")
    tick_s: float = Field(default=1.0, ge=0.05, le=60.0, description="Between two decisions of the controller.")
    timeouts: TimeoutsConfig = Field(default=TimeoutsConfig(), description="How long to wait for upstreams.")
    retries: RetriesConfig = Field(default=RetriesConfig(), description="Retries at another upstream.")
    routing: RoutingConfig = Field(default=RoutingConfig(), description="Which upstream gets the next call.")
    fallback: FallbackConfig | None = Field(
        default=None, description="Another pool for what this one cannot take; none when absent."
    )
    health: HealthConfig = Field(default=HealthConfig(), description="Health of upstreams.")
    signals: SignalsConfig = Field(default=SignalsConfig(), description="The upstreams' own metrics.")
    connections: ConnectionsConfig = Field(default=ConnectionsConfig(), description="Connections to upstreams.")
    keepalive: KeepaliveConfig = Field(default=KeepaliveConfig(), description="Comments in idle event streams.")

    @field_validator("upstreams", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Take one URL, or several with commas between them, as an environment variable would give them."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("upstreams")
    @classmethod
    def _distinct(cls, value: tuple[UpstreamConfig, ...]) -> tuple[UpstreamConfig, ...]:
        seen: set[str] = set()
        for upstream in value:
            if upstream.url in seen:
                raise ValueError(f"{upstream.url} is listed twice")
            seen.add(upstream.url)
        return value

    @field_validator("classes")
    @classmethod
    def _named(cls, value: dict[str, ClassConfig]) -> dict[str, ClassConfig]:
        for name in value:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{name!r} is no name for a class; letters, digits and . _ - make one")
        return value

    @field_validator("default_class")
    @classmethod
    def _known_default_class(cls, value: str, info: ValidationInfo) -> str:
        classes = info.data.get("classes")
        if classes is not None and value not in classes:
            raise ValueError(f"{value!r} is not one of the classes: {', '.join(classes)}")
        return value

    def to_slo(self) -> SLO:
        """Return the SLO in the controller's terms."""
        return self.slo.to_slo()

    def to_class_slos(self) -> dict[str, SLO]:
        """Return the SLOs of classes that have one of their own; what those leave open is the pool's."""
        found = {}
        for name, klass in self.classes.items():
            if klass.slo is not None:
                own = {key: getattr(klass.slo, key) for key in klass.slo.model_fields_set}
                found[name] = self.slo.model_copy(update=own).to_slo()
        return found

    def to_setpoints(self) -> Setpoints:
        """Return generation 0 of the setpoints."""
        return Setpoints(
            max_batch_size=self.setpoints.max_batch_size.initial, window_ms=self.setpoints.window_ms.initial
        )

    def to_bounds(self) -> Bounds:
        """Return how far the controller may turn the setpoints."""
        size, window = self.setpoints.max_batch_size, self.setpoints.window_ms
        return Bounds(
            min_batch_size=size.min, max_batch_size=size.max, min_window_ms=window.min, max_window_ms=window.max
        )


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000.0
