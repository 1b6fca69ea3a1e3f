"""Names in the configuration that stand for code or data: policies, laws, wire formats and profiles."""

from __future__ import annotations

from collections.abc import Iterable

from controller.laws import LAWS, STEERING, check_steering
from controller.loop import PoolController
from controller.predictor.trainer import sklearn_installed
from policies.registry import PolicyError, create_policy, policy_names
from proxy.config.base import nearest
from proxy.config.errors import Path
from proxy.config.model import Config, PoolConfig
from proxy.config.profile import profile_names
from proxy.wire.registry import wire_names

__all__ = ["unknown_names"]

_NO_LEARNING = (
    "got 'learn', which needs numpy and scikit-learn, and they are not installed here; "
    "accepted without them: auto, off, history; to install them: pip install 'trimtab[predictor]'"
)


def unknown_names(config: Config) -> list[tuple[Path, str]]:
    """Return (path, message) for every name that nothing goes by and every option that its owner refuses."""
    found: list[tuple[Path, str]] = []
    for index, pool in enumerate(config.pools):
        for key, message in (*_policy(pool), *_law(pool), *_wire(pool)):
            found.append((("pools", index, key), message))
        if pool.predictor.mode == "learn" and not sklearn_installed():
            found.append((("pools", index, "predictor", "mode"), _NO_LEARNING))
        for place, upstream in enumerate(pool.upstreams):
            if upstream.profile not in profile_names():
                path = ("pools", index, "upstreams", place, "profile")
                found.append((path, _unknown(upstream.profile, profile_names())))
    classes = dict.fromkeys(name for pool in config.pools for name in pool.classes)
    for place, known in enumerate(config.keys):
        for field, name in (("default_class", known.default_class), ("ceiling", known.ceiling)):
            if name is not None and name not in classes:
                found.append((("keys", place, field), _unknown(name, classes)))
        for nth, name in enumerate(known.classes):
            if name not in classes:
                found.append((("keys", place, "classes", nth), _unknown(name, classes)))
    return found


def _policy(pool: PoolConfig) -> list[tuple[str, str]]:
    if pool.policy not in policy_names():
        return [("policy", _unknown(pool.policy, policy_names()))]
    try:
        create_policy(pool.policy, pool.policy_options)
    except PolicyError as error:
        return [("policy_options", str(error))]
    return []


def _law(pool: PoolConfig) -> list[tuple[str, str]]:
    if pool.law not in LAWS:
        return [("law", _unknown(pool.law, STEERING))]
    try:
        check_steering(pool.law)
    except ValueError as error:
        return [("law", str(error))]
    try:
        PoolController(
            pool.name,
            slo=pool.to_slo(),
            setpoints=pool.to_setpoints(),
            bounds=pool.to_bounds(),
            law=pool.law,
            law_options=pool.law_options,
            now=0.0,
        )
    except (TypeError, ValueError) as error:
        return [("law_options", str(error))]
    return []


def _wire(pool: PoolConfig) -> list[tuple[str, str]]:
    return [] if pool.wire in wire_names() else [("wire", _unknown(pool.wire, wire_names()))]


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(known)
    guess = nearest(name, names)
    hint = f"; did you mean {guess}?" if guess else ""
    return f"got {name!r}; accepted: {', '.join(names)}{hint}"
