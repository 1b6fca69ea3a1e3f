"""Who may call: API keys, known by their hashes, and what each is allowed."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from proxy.config.base import NAME_PATTERN, Section

__all__ = ["CorsConfig", "KeyConfig", "KeyLimitsConfig", "hexadecimal"]

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HASH = re.compile(r"^(?:sha256:)?([0-9a-f]{64})$")


def hexadecimal(value: Any, what: str) -> str:
    """Return a SHA-256 as 64 hexadecimal digits. Raises ValueError."""
    plain = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    found = _HASH.match(plain.strip().lower())
    if found is None:
        raise ValueError(
            f"must be the SHA-256 of the {what}, 64 hexadecimal digits; `trimtab config hash-key` prints it"
        )
    return found[1]


class CorsConfig(Section):
    """Which web pages may call, and read the answers. Without origins, the upstream's own answers say so.

    A preflight, which carries no key, is let through to the upstream, or answered here where there are origins.
    """

    allow_origins: tuple[str, ...] = Field(
        default=(), description="Origins such as `https://app.example`, or `*` for any page."
    )
    allow_methods: tuple[str, ...] = Field(
        default=("GET", "HEAD", "POST", "DELETE"), description="Methods that pages may use."
    )
    allow_headers: tuple[str, ...] = Field(
        default=("*",), description="Header fields that pages may send; `*` allows whatever they ask for."
    )
    expose_headers: tuple[str, ...] = Field(
        default=("Retry-After", "X-Request-Id", "X-Trimtab-Reason", "X-Trimtab-Queue-Ms"),
        description="Header fields of an answer that pages may read.",
    )
    allow_credentials: bool = Field(default=False, description="Whether browsers may send cookies.")
    max_age_s: float = Field(
        default=600.0, ge=0.0, le=86_400.0, description="How long a browser may remember the answer to a preflight."
    )

    @field_validator("allow_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and _ORIGIN.fullmatch(origin) is None:
                raise ValueError(f"{origin!r} is no origin: a scheme and a host, such as https://app.example, or *")
        return value

    @field_validator("allow_methods", "allow_headers", "expose_headers")
    @classmethod
    def _tokens(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for token in value:
            if _TOKEN.fullmatch(token) is None:
                raise ValueError(f"{token!r} is no name of a method or header field")
        return value

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.allow_credentials and "*" in self.allow_origins:
            raise ValueError("allow_credentials needs allow_origins to name the origins, not *")
        return self


class KeyLimitsConfig(Section):
    """What a key may use up. Beyond it the answer is 429 with the time at which to come back."""

    requests_per_minute: float | None = Field(
        default=None, gt=0.0, le=1e9, description="Requests; those beyond it are refused and not counted."
    )
    burst: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Requests that may come at once; without it, a minute's."
    )
    tokens_per_minute: float | None = Field(
        default=None,
        gt=0.0,
        le=1e12,
        description="Tokens of prompt and answer: predicted on arrival, corrected when the answer is over.",
    )
    burst_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000_000_000, description="Tokens that may go at once; without it, a minute's."
    )
    max_inflight: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Requests that may be under way at once, queued ones included."
    )

    @model_validator(mode="after")
    def _bursts_of_something(self) -> Self:
        if self.burst is not None and self.requests_per_minute is None:
            raise ValueError("burst only makes sense beside requests_per_minute")
        if self.burst_tokens is not None and self.tokens_per_minute is None:
            raise ValueError("burst_tokens only makes sense beside tokens_per_minute")
        return self


class KeyConfig(Section):
    """One API key: who holds it and what it is worth. As soon as there is one, nobody enters without."""

    name: str = Field(pattern=NAME_PATTERN, description="Name in the configuration and in messages about it.")
    hash: SecretStr = Field(
        description="SHA-256 of the key in hexadecimal, with or without `sha256:` before it; `trimtab config "
        "hash-key` prints it."
    )
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Whom its requests are counted for; its name if absent.",
    )
    weight: float = Field(
        default=1.0, gt=0.0, le=1000.0, description="Share of its tenant relative to others, with policy `fair`."
    )
    default_class: str | None = Field(
        default=None, description="Class of a request that names none; without it, the pool's."
    )
    ceiling: str | None = Field(
        default=None,
        description="Most urgent class that x-trimtab-class may ask for; without it, the default class.",
    )
    classes: tuple[str, ...] = Field(
        default=(), description="Classes that x-trimtab-class may ask for; empty for all up to the ceiling."
    )
    trust_headers: bool = Field(
        default=False,
        description="Whether x-trimtab-tenant is believed, and any class given where no ceiling is set.",
    )
    limits: KeyLimitsConfig = Field(default=KeyLimitsConfig(), description="What it may use up.")

    @field_validator("hash", mode="before")
    @classmethod
    def _hexadecimal(cls, value: Any) -> Any:
        return hexadecimal(value, "key")

    @model_validator(mode="after")
    def _agreeing(self) -> Self:
        for key in ("default_class", "ceiling"):
            name = getattr(self, key)
            if self.classes and name is not None and name not in self.classes:
                raise ValueError(f"{key} {name!r} is not one of its classes: {', '.join(self.classes)}")
        return self

    @property
    def digest(self) -> bytes:
        """The hash as bytes."""
        return bytes.fromhex(self.hash.get_secret_value())
