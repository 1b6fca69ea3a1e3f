"""A linear map, laid out as the processor likes it."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["Linear"]

_PACK_ROWS = 16
"""Batch size that oneDNN lays weights out for; the layout serves every other size well too."""


class Linear:
    """y = x W^T + b, row by row."""

    __slots__ = ("_packed", "bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight: torch.Tensor | None = weight
        """[out, in]; None once packed"""
        self.bias = bias
        """[out]"""
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to [T, in]; returns [T, out]."""
        if self._packed is not None:
            alone = x.shape[0] == 1 and x.dtype is torch.float32
            if alone:
                # oneDNN sums a single row in another order than the same row among others. In company of itself its
                # bits are those it has in any batch.
                x = x.expand(2, -1).contiguous()
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return y[:1] if alone else y
        assert self.weight is not None
        return functional.linear(x, self.weight, self.bias)

    def pack(self) -> None:
        """Lay the weight out for oneDNN once, instead of at every call, and drop the plain one.

        Only for CPU weights. bfloat16 decode took 24 ms instead of 39 ms a step on SmolLM2-135M at batch sizes 1 to
        16 (AMX, one thread). Where this build of torch has no such kernel nothing changes.
        """
        weight = self.weight
        if weight is None or weight.device.type != "cpu" or not _can_pack(weight.dtype):
            return
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self.weight = None


def _can_pack(dtype: torch.dtype) -> bool:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
