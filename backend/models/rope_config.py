"""What a checkpoint says about its rotary position embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.models.errors import ModelError

__all__ = ["RopeConfig", "parse_rope"]

_KINDS = ("default", "linear", "llama3", "yarn", "dynamic", "divisors")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotary embedding. A model has one, or one for its local and one for its global layers (Gemma 3)."""

    theta: float
    dim: int
    """Width that is rotated: the head dimension."""
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    """Context length before scaling, for `llama3` and `yarn`."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    """Multiplies cos and sin (YaRN's temperature)."""
    truncate: bool = True
    """Round YaRN's ramp outwards to whole dimensions."""
    divisors: tuple[float, ...] = ()
    """Per pair of dimensions, what its frequency is divided by (how GGUF files carry `llama3` scaling)."""


def parse_rope(raw: Mapping[str, Any], *, theta: float, dim: int, max_position: int) -> RopeConfig:
    """Read a `rope_scaling` or `rope_parameters` object.

    Args:
        raw: the object, or an empty mapping for plain RoPE.
        theta: base to use when the object names none.
        dim: head dimension.
        max_position: `max_position_embeddings`, the default of `original_max_position_embeddings`.

    Raises:
        ModelError: the kind is not one of default, linear, llama3, yarn, dynamic, or lacks its parameters.
    """
    kind = str(raw.get("rope_type") or raw.get("type") or "default")
    theta = float(raw.get("rope_theta") or theta)
    if float(raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError(
            f"config.json: partial_rotary_factor {raw['partial_rotary_factor']} is not supported, only 1.0"
        )
    if kind not in _KINDS:
        raise ModelError(f"config.json: rope type {kind!r} is not supported (supported: {', '.join(_KINDS)})")
    if kind in ("default", "dynamic"):
        # Dynamic NTK scaling equals plain RoPE up to max_position_embeddings, which bounds the context here.
        return RopeConfig(theta=theta, dim=dim)
    if kind == "divisors":
        return RopeConfig(theta=theta, dim=dim, kind=kind, divisors=tuple(map(float, raw["divisors"])))
    original = int(raw.get("original_max_position_embeddings") or max_position)
    factor = raw.get("factor")
    if factor is None and kind == "yarn":
        factor = max_position / original
    if factor is None:
        raise ModelError(f"config.json: rope type {kind!r} needs a factor")
    factor = float(factor)
    return RopeConfig(
        theta=theta,
        dim=dim,
        kind=kind,
        factor=factor,
        original_max_position=original,
        low_freq_factor=float(raw.get("low_freq_factor") or 1.0),
        high_freq_factor=float(raw.get("high_freq_factor") or 4.0),
        beta_fast=float(raw.get("beta_fast") or 32.0),
        beta_slow=float(raw.get("beta_slow") or 1.0),
        attention_factor=_yarn_temperature(raw, factor) if kind == "yarn" else 1.0,
        truncate=bool(raw.get("truncate", True)),
    )


def _yarn_temperature(raw: Mapping[str, Any], factor: float) -> float:
    """Scale of cos and sin: 0.1 m ln(s) + 1 (YaRN, Peng et al. 2023, eq. 22; m as in DeepSeek's variant)."""
    if raw.get("attention_factor") is not None:
        return float(raw["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if raw.get("mscale") and raw.get("mscale_all_dim"):
        return mscale(float(raw["mscale"])) / mscale(float(raw["mscale_all_dim"]))
    return mscale(1.0)
