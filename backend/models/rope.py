"""Rotary position embeddings: inverse frequencies of each scaling kind, and the rotation itself."""

from __future__ import annotations

import math

import torch

from backend.models.rope_config import RopeConfig

__all__ = ["cos_sin", "inverse_frequencies", "rotate"]


def inverse_frequencies(config: RopeConfig) -> torch.Tensor:
    """Angular velocity of each pair of dimensions, float32 [dim / 2] (RoFormer, Su et al. 2021, eq. 15)."""
    exponents = torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim
    plain = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(plain, config)
    if config.kind == "yarn":
        return _yarn(plain, config)
    if config.kind == "divisors":
        return plain / torch.tensor(config.divisors, dtype=torch.float32)
    return plain


def _llama3(plain: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Slow pairs are interpolated, fast ones kept, those between blended by wavelength (Llama 3.1's rule)."""
    wavelength = 2 * math.pi / plain
    low = config.original_max_position / config.low_freq_factor
    high = config.original_max_position / config.high_freq_factor
    blend = (config.original_max_position / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blended = (1 - blend) * plain / config.factor + blend * plain
    return torch.where(wavelength > low, plain / config.factor, torch.where(wavelength < high, plain, blended))


def _yarn(plain: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """NTK-by-parts: a linear ramp over dimensions between two rotation counts (YaRN, sections 3.2 and 3.4)."""

    def dimension_of(rotations: float) -> float:
        turns = config.original_max_position / (rotations * 2 * math.pi)
        return config.dim * math.log(turns) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(config.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / config.factor * ramp + plain * (1 - ramp)


def cos_sin(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of a step's positions, each [T, 1, dim / 2], computed in float32."""
    angles = (positions.to(torch.float32)[:, None] * frequencies)[:, None, :]
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + dim/2) of [T, H, dim] by the angles of cos, sin [T, 1, dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
