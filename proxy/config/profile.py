"""What is known about each kind of inference server, as data: one YAML file each in `proxy/config/profiles`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError, field_validator

from proxy.config.base import Section, nearest
from proxy.config.predictor import Use
from proxy.wire.registry import route_names, wire_names

__all__ = ["Profile", "ProfileError", "Signals", "load_profile", "parse_profile", "profile_names"]

Dispatch = Literal["merge", "gate"]

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([^\s]+)(?:\s+-?[0-9]+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class ProfileError(ValueError):
    """A profile that does not exist or is not valid; the message names the file and the key."""


class Signals(NamedTuple):
    """What a server says about its own load; None where it does not say. Seconds old at best."""

    running: float | None = None
    """Sequences being worked on."""
    waiting: float | None = None
    """Requests in the server's own queue."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""


class HealthSpec(Section):
    """How to ask whether the server is well."""

    path: str | None = Field(
        default=None, pattern=r"^/", description="Probed with GET, well when 2xx; a TCP connect when absent."
    )


class Series(Section):
    """A time series in the server's metrics. A bare name is short for `{name: ...}`."""

    name: str = Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", description="Metric name.")
    labels: dict[str, str] = Field(default={}, description="Labels it must have.")


class MetricsSpec(Section):
    """Where the server's metrics are and which of them say how busy it is.

    Of each list the first series that is there counts: names change between versions.
    """

    path: str = Field(default="/metrics", pattern=r"^/", description="Path of the Prometheus text.")
    port: int | None = Field(default=None, ge=1, le=65_535, description="When not on the port of the API.")
    running: tuple[Series, ...] = Field(default=(), description="Sequences being worked on; summed.")
    waiting: tuple[Series, ...] = Field(default=(), description="Requests in its own queue; summed.")
    kv_usage: tuple[Series, ...] = Field(default=(), description="KV cache in use, 0 to 1; the fullest counts.")

    @field_validator("running", "waiting", "kv_usage", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        return [{"name": item} if isinstance(item, str) else item for item in value]


class DispatchSpec(Section):
    """Who makes the batches under `dispatch: auto`."""

    default: Dispatch = Field(default="gate", description="For operations not listed.")
    routes: dict[str, Dispatch] = Field(default={}, description="By operation of the wire formats.")

    @field_validator("routes")
    @classmethod
    def _known(cls, value: dict[str, Dispatch]) -> dict[str, Dispatch]:
        unknown = sorted(value.keys() - set(route_names()))
        if unknown:
            raise ValueError(f"unknown operations {', '.join(unknown)}; known are {', '.join(route_names())}")
        return value


class Profile(Section):
    """One kind of server."""

    name: str = Field(pattern=r"^[a-z0-9-]+$", description="What `profile` in the configuration calls it.")
    title: str = Field(min_length=1, description="What people call it.")
    wire: tuple[str, ...] = Field(min_length=1, description="Wire formats it speaks.")
    health: HealthSpec = Field(default=HealthSpec(), description="Health check.")
    metrics: MetricsSpec | None = Field(default=None, description="Metrics; absent when it has none.")
    dispatch: DispatchSpec = Field(default=DispatchSpec(), description="Who makes the batches.")
    credential_header: str = Field(
        default="Authorization",
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Header that carries an API key: Authorization (as a bearer token), x-api-key or another.",
    )
    pads: bool = Field(
        default=False,
        description="Pads the items of a batch to the length of the longest, so merged calls list the longest first.",
    )
    predictor: tuple[Use, ...] = Field(
        default=("order", "admit", "route"),
        description="What predicted lengths are good for; `hint`: it reads x-trimtab-predicted-tokens.",
    )
    keepalive_s: float | None = Field(
        default=None, gt=0.0, description="It closes connections that were idle this long; absent when it does not."
    )

    @field_validator("wire")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in wire_names()]
        if unknown:
            raise ValueError(f"unknown wire formats {', '.join(unknown)}; known are {', '.join(wire_names())}")
        return value

    def dispatch_for(self, route: str) -> Dispatch:
        """Return who makes the batches for the operation called `route`."""
        return self.dispatch.routes.get(route, self.dispatch.default)

    @property
    def says_load(self) -> bool:
        """Whether anything in its metrics says how busy it is."""
        spec = self.metrics
        return spec is not None and bool(spec.running or spec.waiting or spec.kv_usage)

    def read_signals(self, text: str) -> Signals:
        """Read the server's load from its metrics in Prometheus text format; lines that make no sense are skipped."""
        spec = self.metrics
        if spec is None:
            return Signals()
        wanted = {series.name for group in (spec.running, spec.waiting, spec.kv_usage) for series in group}
        # Servers write thousands of lines, of which a handful matter.
        begins = tuple(wanted)
        lines = [line for line in text.splitlines() if line.startswith(begins)]
        samples = [sample for sample in map(_sample, lines) if sample and sample[0] in wanted]
        running, waiting, usage = (_first(group, samples) for group in (spec.running, spec.waiting, spec.kv_usage))
        return Signals(
            sum(running) if running else None, sum(waiting) if waiting else None, max(usage) if usage else None
        )


def profile_names() -> tuple[str, ...]:
    """Return the name of every profile there is."""
    return tuple(sorted(_file_stem(item.name) for item in _folder().iterdir() if item.name.endswith(".yaml")))


@cache
def load_profile(name: str) -> Profile:
    """Return the profile called `name`. Raises ProfileError when there is none or its file is not valid."""
    known = profile_names()
    if name not in known:
        close = nearest(name, known)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ProfileError(f"unknown profile {name!r}.{hint} Known: {', '.join(known)}")
    return parse_profile(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")


def parse_profile(text: str, source: str) -> Profile:
    """Validate a profile's YAML. Raises ProfileError that names `source`, the key and what is accepted."""
    try:
        profile = Profile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ProfileError(f"{source}: not valid YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "(the whole file)"
        raise ProfileError(f"{source}: {key}: {first['msg']}") from error
    if profile.name != _file_stem(source):
        raise ProfileError(f"{source}: name: is {profile.name!r}, the file's name says {_file_stem(source)!r}")
    return profile


def _first(group: tuple[Series, ...], samples: list[tuple[str, dict[str, str], float]]) -> list[float]:
    """Return the values of the first series of `group` that is there."""
    for series in group:
        values = [
            value
            for name, labels, value in samples
            if name == series.name and all(labels.get(key) == wanted for key, wanted in series.labels.items())
        ]
        if values:
            return values
    return []


def _sample(line: str) -> tuple[str, dict[str, str], float] | None:
    """Read one line of Prometheus text; None for comments and anything else, not-a-number included."""
    found = None if line.startswith("#") else _SAMPLE.fullmatch(line)
    if found is None:
        return None
    try:
        value = float(found.group(3))
    except ValueError:
        return None
    if value != value:
        return None
    return found.group(1), dict(_LABEL.findall(found.group(2) or "")), value


def _file_stem(name: str) -> str:
    return name.removesuffix(".yaml")


def _folder() -> Any:
    return files("proxy.config").joinpath("profiles")
