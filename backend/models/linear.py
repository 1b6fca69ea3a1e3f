"""A linear map, laid out as the processor likes it."""

from __future__ import annotations

import torch
from torch.nn import functional

from backend.native.products import Products, load_products

__all__ = ["Linear"]

_PACK_ROWS = 16
"""Batch size that oneDNN lays weights out for; the layout serves every other size well too."""


class Linear:
    """y = x W^T + b, row by row."""

    __slots__ = ("_packed", "_products", "bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight: torch.Tensor | None = weight
        """[out, in]; None once packed"""
        self.bias = bias
        """[out]"""
        self._packed: torch.Tensor | None = None
        self._products: Products | None = None

    @property
    def is_native(self) -> bool:
        """Whether the native products compute it."""
        return self._products is not None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to [T, in]; returns [T, out] of x's type."""
        if self._packed is None:
            assert self.weight is not None
            return functional.linear(x, self.weight, self.bias)
        if self._products is not None:
            return self._products.multiply(x, self._packed, self.bias)
        alone = x.shape[0] == 1 and x.dtype is torch.float32
        if alone:
            # oneDNN sums a single row in another order than the same row among others. In company of itself its
            # bits are those it has in any batch.
            x = x.expand(2, -1).contiguous()
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y[:1] if alone else y

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to [T, in]; returns float32 [T, out], not rounded to x's type where that can be had for nothing."""
        if self._products is not None and self._packed is not None:
            return self._products.multiply(x, self._packed, self.bias, wide=True)
        return self(x).float()

    def pack(self) -> None:
        """Lay the weight out once, instead of at every call, and drop the plain one. Only for CPU weights.

        By the native products where they take it, else by oneDNN, and where neither can be had nothing changes. All
        products of a step of SmolLM2-135M at batch sizes 1, 16 and 64, in ms (AMX and AVX-512, one thread, weights in
        huge pages): bfloat16 26, 28 and 39, by oneDNN 32, 34 and 47; float32 50, 68 and 147, by oneDNN 74, 95 and
        203. Without any layout of its own a bfloat16 step took 39 where oneDNN's took 24.
        """
        weight = self.weight
        if weight is None or weight.device.type != "cpu":
            return
        products = load_products()
        if products is not None and products.takes(weight):
            self._products, self._packed = products, products.pack(weight)
        elif _can_pack(weight.dtype):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        else:
            return
        self.weight = None


def _can_pack(dtype: torch.dtype) -> bool:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
