"""Policies by name, the built-in ones and those that other packages bring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from policies.base import Policy
from policies.edf import EarliestDeadlineFirst
from policies.fair import Fair
from policies.fcfs import FCFS
from policies.predicted import Predicted
from policies.prefill_first import PrefillFirst
from policies.priority import Priority
from policies.sjf import ShortestJobFirst

__all__ = ["BUILTIN", "ENTRY_POINT_GROUP", "PolicyError", "create_policy", "policy_names"]

ENTRY_POINT_GROUP = "trimtab.policies"

BUILTIN: dict[str, Callable[..., Policy]] = {
    policy.name: policy
    for policy in (
        FCFS,
        ShortestJobFirst,
        Priority,
        EarliestDeadlineFirst,
        Predicted,
        PrefillFirst,
        Fair,
    )
}


class PolicyError(ValueError):
    """A policy that cannot be made as asked; the message names what was wrong and what would be right."""


def policy_names() -> tuple[str, ...]:
    """Return every name that `create_policy` knows, built-in ones first. Loads no third-party code."""
    others = sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)} - BUILTIN.keys())
    return (*BUILTIN, *others)


def create_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Make a new policy.

    A built-in name always means the built-in policy; other names are looked up in the entry-point group
    `trimtab.policies`, whose entries are classes or functions that take the options as keywords. Raises
    PolicyError for an unknown name, an unknown option or a bad value.
    """
    factory = BUILTIN.get(name) or _third_party(name)
    options = options or {}
    _check_options(name, factory, options)
    try:
        policy = factory(**options)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy {name!r}: {type(policy).__name__} does not have the methods of policies.Policy")
    return policy


def _third_party(name: str) -> Callable[..., Policy]:
    found: list[EntryPoint] = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not found:
        known = policy_names()
        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise PolicyError(f"unknown policy {name!r}.{hint} Known policies: {', '.join(known)}")
    try:
        factory: Callable[..., Policy] = found[0].load()
    except Exception as error:
        raise PolicyError(f"policy {name!r}: {found[0].value} cannot be loaded: {error}") from error
    return factory


def _check_options(name: str, factory: Callable[..., Policy], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    accepted = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in options:
        if option not in accepted:
            close = get_close_matches(option, accepted, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(accepted) or "none"
            raise PolicyError(f"policy {name!r} has no option {option!r}.{hint} Options: {listed}")
