"""The whole configuration as one frozen snapshot.

`Config.model_validate(data)` takes plain data as a YAML file gives it. `proxy.config.load` reads files, the
environment and flags into it and words the errors.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from proxy.config.access import CorsConfig, KeyConfig, KeyLimitsConfig, hexadecimal
from proxy.config.base import NAME_PATTERN, Section
from proxy.config.pool import (
    BatchSizeRange,
    ClassConfig,
    ConnectionsConfig,
    FallbackConfig,
    HealthConfig,
    KeepaliveConfig,
    MatchConfig,
    PoolConfig,
    QueueConfig,
    RetriesConfig,
    RoutingConfig,
    SetpointsConfig,
    SignalsConfig,
    SloConfig,
    TimeoutsConfig,
    UpstreamConfig,
    WindowRange,
)
from proxy.config.tls import ListenTlsConfig, UpstreamTlsConfig

__all__ = [
    "POOL_KEYS",
    "AdminConfig",
    "AdminTokenConfig",
    "BatchSizeRange",
    "ClassConfig",
    "Config",
    "ConnectionsConfig",
    "CorsConfig",
    "DrainConfig",
    "FallbackConfig",
    "HealthConfig",
    "KeepaliveConfig",
    "KeyConfig",
    "KeyLimitsConfig",
    "LimitsConfig",
    "ListenConfig",
    "ListenTlsConfig",
    "LogConfig",
    "MatchConfig",
    "PoolConfig",
    "QueueConfig",
    "RetriesConfig",
    "RoutingConfig",
    "SetpointsConfig",
    "SignalsConfig",
    "SloConfig",
    "StateConfig",
    "TimeoutsConfig",
    "TracingConfig",
    "UpstreamConfig",
    "UpstreamTlsConfig",
    "WindowRange",
    "is_loopback",
]

POOL_KEYS = frozenset(PoolConfig.model_fields) - {"name"}
"""Keys that, written at the top level, describe the one pool of a short configuration."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ListenConfig(Section):
    """Where clients connect."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to bind.")
    port: int = Field(default=8080, ge=0, le=65_535, description="Port to bind; 0 lets the system pick one.")
    backlog: int = Field(default=1024, ge=1, le=65_535, description="Connections the kernel may hold for us.")
    plain_probes: bool = Field(
        default=False,
        description="Answer `/healthz` and `/readyz` here, in the place of the upstreams' own. "
        "`/-/trimtab/healthz` and `/-/trimtab/readyz` are answered in any case.",
    )
    tls: ListenTlsConfig | None = Field(default=None, description="Serve https; without it, http.")


class AdminTokenConfig(Section):
    """A token of the admin API with a name, known by its hash alone."""

    name: str = Field(pattern=NAME_PATTERN, description="Who holds it; decisions are made in this name.")
    role: Literal["read", "write"] = Field(default="read", description="read may look, write may change as well.")
    sha256: SecretStr = Field(description="SHA-256 of the token in hexadecimal; `trimtab config hash-key` prints it.")

    @field_validator("sha256", mode="before")
    @classmethod
    def _hexadecimal(cls, value: Any) -> Any:
        return hexadecimal(value, "token")


class AdminConfig(Section):
    """Where operators and Prometheus connect."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to bind; others need a token.")
    port: int = Field(default=8081, ge=0, le=65_535, description="Port to bind; 0 lets the system pick one.")
    token: SecretStr | None = Field(
        default=None, min_length=16, description="Bearer token for the admin API; required off loopback."
    )
    read_token: SecretStr | None = Field(
        default=None, min_length=16, description="Bearer token that may read but not change."
    )
    tokens: tuple[AdminTokenConfig, ...] = Field(
        default=(),
        max_length=1000,
        description="Tokens of several people or programs, each with a name.",
    )
    max_body_bytes: int = Field(default=65_536, ge=1_024, le=16_777_216, description="Largest request body.")
    max_connections: int = Field(
        default=256,
        ge=8,
        le=65_536,
        description="Open connections. For one more, the one that has been idle for longest is closed; where none is "
        "idle it is refused with 503.",
    )
    tls: ListenTlsConfig | None = Field(default=None, description="Serve https; without it, http.")

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        names = [token.name for token in self.tokens]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tokens are called {name!r}")
        if self.token is None and not self.tokens and not is_loopback(self.host):
            raise ValueError(f"a token is required when host is {self.host}, which other machines can reach")
        if self.read_token is not None and self.token is None:
            raise ValueError("read_token only makes sense beside token")
        return self


class LimitsConfig(Section):
    """What a client may send."""

    max_body_bytes: int = Field(
        default=33_554_432, ge=1_024, le=4_294_967_296, description="Largest request body that is read; more is 413."
    )
    max_header_line_bytes: int = Field(
        default=16_384, ge=1_024, le=1_048_576, description="Longest request line or header; more is 431."
    )
    max_header_bytes: int = Field(
        default=65_536, ge=1_024, le=16_777_216, description="All headers together; more is 431."
    )
    max_headers: int = Field(default=128, ge=8, le=10_000, description="Most header lines; more is 431.")
    max_connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Open client connections. For one more, the one that has been idle for longest is closed; where "
        "none is idle it is refused with 503.",
    )
    max_held_bytes: int | None = Field(
        default=None,
        ge=1_048_576,
        description="Bytes of request bodies in memory, over all requests; more is 503. Without it, a quarter of the "
        "memory that the process may use.",
    )
    max_json_values: int = Field(
        default=10_000_000,
        ge=65_536,
        le=1_000_000_000,
        description="Most commas, arrays and objects of a JSON body together; more is 400.",
    )
    body_timeout_s: float = Field(
        default=60.0,
        gt=0.0,
        le=3_600.0,
        description="How long a client may keep us waiting for the next piece of its body, and in all.",
    )
    answer_timeout_s: float = Field(
        default=60.0, gt=0.0, le=3_600.0, description="How long a client may take nothing of its answer."
    )
    min_rate_bytes: int = Field(
        default=500,
        ge=1,
        le=1_000_000_000,
        description="Bytes a second that a client must send or take, once these two are used up.",
    )
    head_timeout_s: float = Field(
        default=30.0, gt=0.0, le=3_600.0, description="From a connection's first byte to the end of its first head."
    )
    keepalive_timeout_s: float = Field(default=75.0, gt=0.0, le=3_600.0, description="Idle client connections.")


class DrainConfig(Section):
    """How to go away on SIGTERM."""

    grace_s: float = Field(default=2.0, ge=0.0, le=3_600.0, description="Unready, but still accepting.")
    cap_s: float = Field(default=30.0, ge=0.0, le=86_400.0, description="Then requests may run this long.")


class LogConfig(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severity written.")
    format: Literal["auto", "text", "json"] = Field(
        default="auto", description="auto: text on a terminal, else JSON."
    )
    access: bool = Field(default=False, description="One line per request, without what it carried.")
    journal: str | None = Field(
        default=None,
        min_length=1,
        description="File for everything the controllers are told and answer, for `trimtab simulate --replay FILE`.",
    )
    journal_max_mb: int = Field(default=256, ge=1, le=1_048_576, description="Nothing more is written beyond this.")
    access_ratio: float = Field(default=1.0, gt=0.0, le=1.0, description="Share of requests logged; failures always.")


class TracingConfig(Section):
    """OpenTelemetry traces, sent over OTLP/HTTP. Needs the extra: `pip install 'trimtab[otel]'`."""

    enabled: bool = Field(default=False, description="Whether requests are traced.")
    endpoint: str = Field(
        default="http://127.0.0.1:4318/v1/traces", min_length=1, description="Where the collector takes traces."
    )
    headers: dict[str, SecretStr] = Field(default={}, description="Sent along, such as a credential.")
    ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, description="Share of traces begun here; a caller's own decision counts first."
    )
    service_name: str = Field(default="trimtab", min_length=1, description="Who the spans are from.")

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must be an http or https URL, such as http://127.0.0.1:4318/v1/traces")
        return value


class StateConfig(Section):
    """What survives a restart: pins, SLOs and laws set by operators, the setpoints, and what was learned."""

    enabled: bool = Field(default=True, description="Whether anything is kept.")
    path: str | None = Field(
        default=None,
        min_length=1,
        description="SQLite file. Without it `trimtab serve` and `trimtab up` take `$STATE_DIRECTORY`, else "
        "`$XDG_STATE_HOME/trimtab`, else `~/.local/state/trimtab`, and a file named after the port.",
    )
    every_s: float = Field(default=30.0, ge=1.0, le=86_400.0, description="Between two savings; also on shutdown.")


class Config(Section):
    """Everything `trimtab serve` needs to know.

    A pool's keys may stand at the top level instead of under `pools`: then there is one pool, `default`.
    """

    listen: ListenConfig = Field(default=ListenConfig(), description="The data plane's address.")
    admin: AdminConfig = Field(default=AdminConfig(), description="The admin and metrics address.")
    limits: LimitsConfig = Field(default=LimitsConfig(), description="What a client may send.")
    cors: CorsConfig = Field(default=CorsConfig(), description="Web pages of other origins.")
    drain: DrainConfig = Field(default=DrainConfig(), description="Shutdown.")
    log: LogConfig = Field(default=LogConfig(), description="Logging.")
    tracing: TracingConfig = Field(default=TracingConfig(), description="OpenTelemetry traces.")
    state: StateConfig = Field(default=StateConfig(), description="What survives a restart.")
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that serve clients on one port (Linux); see `docs/workers.md`.",
    )
    trust_headers: bool = Field(
        default=True,
        description="Whether callers may choose class and tenant by x-trimtab-class and x-trimtab-tenant; where "
        "there are keys, each says so itself.",
    )
    keys: tuple[KeyConfig, ...] = Field(
        default=(), max_length=100_000, description="API keys. With none, everybody may call."
    )
    forward_keys: bool = Field(
        default=False, description="Whether the key that let a caller in is passed on to the upstream."
    )
    pools: tuple[PoolConfig, ...] = Field(min_length=1, max_length=64, description="In order; the first match wins.")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Move a short configuration's pool keys under `pools`."""
        if not isinstance(data, dict):
            return data
        short = {key: data[key] for key in data if key in POOL_KEYS}
        if not short or "pools" in data:
            return data
        rest = {key: data[key] for key in data if key not in POOL_KEYS}
        return {**rest, "pools": [short]}

    @field_validator("pools")
    @classmethod
    def _distinct(cls, value: tuple[PoolConfig, ...]) -> tuple[PoolConfig, ...]:
        names = [pool.name for pool in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two pools are called {name!r}")
        return value

    @field_validator("pools")
    @classmethod
    def _no_circles(cls, value: tuple[PoolConfig, ...]) -> tuple[PoolConfig, ...]:
        after = {pool.name: pool.fallback.pool for pool in value if pool.fallback is not None}
        names = [pool.name for pool in value]
        for name, wanted in after.items():
            if wanted not in names:
                raise ValueError(f"the fallback of pool {name!r} is {wanted!r}; pools are {', '.join(names)}")
            way = [name]
            while way[-1] in after:
                way.append(after[way[-1]])
                if way[-1] in way[:-1]:
                    raise ValueError(f"fallbacks go in a circle: {' -> '.join(way)}")
        for pool in value:
            if not pool.match.paths and pool.name not in after.values():
                raise ValueError(f"pool {pool.name!r} matches no path and is nobody's fallback")
        return value

    @field_validator("keys")
    @classmethod
    def _told_apart(cls, value: tuple[KeyConfig, ...]) -> tuple[KeyConfig, ...]:
        names: set[str] = set()
        hashes: dict[bytes, str] = {}
        for key in value:
            if key.name in names:
                raise ValueError(f"two keys are called {key.name!r}")
            other = hashes.setdefault(key.digest, key.name)
            if other != key.name:
                raise ValueError(f"{other!r} and {key.name!r} have the same hash")
            names.add(key.name)
        return value

    @model_validator(mode="after")
    def _one_address_each(self) -> Self:
        if self.listen.port and (self.listen.host, self.listen.port) == (self.admin.host, self.admin.port):
            raise ValueError(f"listen and admin both want {self.listen.host}:{self.listen.port}")
        return self

    def pool(self, name: str) -> PoolConfig:
        """Return the pool called `name`. Raises KeyError."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)
