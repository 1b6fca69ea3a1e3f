"""One inference server, how calls are spread over several, and what happens when none of them can take one."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from proxy.config.base import NAME_PATTERN, Section, check_url
from proxy.config.tls import UpstreamTlsConfig

__all__ = ["FallbackConfig", "RoutingConfig", "SignalsConfig", "UpstreamConfig"]

_TOKEN = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
_SECRET = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")


class UpstreamConfig(Section):
    """One inference server. A bare URL is short for `{url: ...}`."""

    url: str = Field(
        description="Base URL, http or https; a path in it is put before the request's own, a version at its end "
        "(`/v1`) only once."
    )
    weight: float = Field(default=1.0, gt=0.0, le=1000.0, description="Share of the work relative to the others.")
    profile: str = Field(
        default="auto",
        pattern=NAME_PATTERN,
        description="What kind of server it is: the name of a file in proxy/config/profiles, or auto.",
    )
    model: str | None = Field(default=None, min_length=1, description="Model name to send instead of the caller's.")
    api_key: SecretStr | None = Field(
        default=None,
        description="Credential to send instead of the caller's; write ${NAME} to take it from the environment.",
    )
    api_key_header: str | None = Field(
        default=None,
        pattern=_TOKEN,
        description="Header that carries `api_key`: `Authorization` (as a bearer token), `x-api-key`, `api-key` or "
        "any other; the profile's when absent.",
    )
    client_credentials: Literal["auto", "pass", "strip"] = Field(
        default="auto",
        description="What becomes of the caller's own Authorization, x-api-key and api-key. auto: stripped where "
        "`api_key` is set, else passed on. A key that let the caller in goes by `forward_keys` first.",
    )
    tls: UpstreamTlsConfig | None = Field(
        default=None, description="How to trust it and be trusted by it; the system's authorities when absent."
    )

    @model_validator(mode="after")
    def _tls_where_there_is_tls(self) -> Self:
        if self.tls is not None and not self.url.startswith("https:"):
            raise ValueError(f"tls is set, but {self.url} is not https")
        return self

    @model_validator(mode="after")
    def _header_of_something(self) -> Self:
        if self.api_key_header is not None and self.api_key is None:
            raise ValueError("api_key_header only makes sense beside api_key")
        return self

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, data: Any) -> Any:
        return {"url": data} if isinstance(data, str) else data

    @field_validator("url", mode="before")
    @classmethod
    def _base_url(cls, value: Any) -> str:
        return check_url(value)

    @field_validator("api_key")
    @classmethod
    def _one_line(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        plain = value.get_secret_value().strip()
        if not _SECRET.fullmatch(plain):
            raise ValueError("must be printable ASCII on one line; is the environment variable set?")
        return SecretStr(plain)

    @field_validator("api_key_header")
    @classmethod
    def _not_framing(cls, value: str | None) -> str | None:
        if value is not None and value.lower() in _FRAMING:
            raise ValueError(f"{value} frames or routes the request; use Authorization, x-api-key or api-key")
        return value


class RoutingConfig(Section):
    """Which upstream gets the next call, where there are several. A bare name is short for `{strategy: ...}`."""

    strategy: Literal["least-work", "round-robin", "prefix", "sticky"] = Field(
        default="least-work",
        description="least-work: least predicted tokens outstanding for its weight. round-robin: in turn, by weight. "
        "prefix: where a prompt's beginning was sent before, unless that one is busy. sticky: by a header's value.",
    )
    header: str | None = Field(
        default=None,
        pattern=_TOKEN,
        description="sticky: header whose value chooses; requests without one go by work.",
    )
    block_bytes: int = Field(
        default=512, ge=32, le=65_536, description="prefix: bytes of prompt that are remembered as one block."
    )
    max_blocks: int = Field(
        default=65_536, ge=64, le=10_000_000, description="prefix: most blocks remembered, the latest used."
    )
    max_load_factor: float = Field(
        default=1.5,
        ge=1.0,
        le=100.0,
        description="prefix: an upstream with more than this many times its share of the calls is passed over.",
    )
    slow_start_ms: float = Field(
        default=10_000.0,
        ge=0.0,
        le=3_600_000.0,
        description="How long the weight of an upstream that came back, or was added by a reload, takes to grow from "
        "a tenth to its whole; 0 for at once.",
    )

    follow_ids: bool = Field(
        default=True,
        description="Send what names a response, conversation, file, batch or the like to the upstream that made it, "
        "under every strategy, and to nobody else. false: upstreams share what they keep.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"strategy": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _header_where_it_counts(self) -> Self:
        if self.strategy == "sticky" and self.header is None:
            raise ValueError("sticky needs header, such as x-session-id")
        if self.strategy != "sticky" and self.header is not None:
            raise ValueError("header only makes sense with strategy sticky")
        return self


class FallbackConfig(Section):
    """Another pool for requests that this one cannot take. A bare name is short for `{pool: ...}`."""

    pool: str = Field(pattern=NAME_PATTERN, description="Name of the other pool; circles are refused.")
    on: tuple[Literal["no_upstream", "overload", "failure"], ...] = Field(
        default=("no_upstream", "overload", "failure"),
        min_length=1,
        description="no_upstream: nobody may be asked, or nobody could be connected to. overload: refused or shed "
        "by our own queue or admission, or answered 429 or 503 by the upstream. failure: the call broke before a "
        "byte of its answer, and repeating it does no harm. Timeouts and callers' own limits never.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"pool": data} if isinstance(data, str) else data


class SignalsConfig(Section):
    """What upstreams say about their own load, read from their metrics where the profile names them.

    It is shown to operators, with its age. Control never uses it: it is seconds old.
    """

    enabled: bool = Field(default=True, description="Whether to ask.")
    interval_ms: float = Field(default=5_000.0, ge=250.0, le=3_600_000.0, description="Between two readings.")
    timeout_ms: float = Field(default=2_000.0, ge=10.0, le=60_000.0, description="A reading is given up after this.")
