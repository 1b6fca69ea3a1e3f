"""A linear map, as the processor likes it."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["Linear"]


class Linear:
    """y = x W^T + b over the last axis."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        """[out, in]"""
        self.bias = bias
        """[out]"""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to [..., in]; returns [..., out]."""
        return functional.linear(x, self.weight, self.bias)
