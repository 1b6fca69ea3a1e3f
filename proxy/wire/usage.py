"""Dividing the bill of a merged call between its callers, to the last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["apportion", "split_usage"]

_OUTPUT_PREFIXES = ("completion", "output")


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` in proportion to `weights` so that the parts add up to it (largest remainders).

    Equal parts when nobody has any weight. Raises ValueError when there is nobody or `total` is negative.
    """
    if not weights or total < 0:
        raise ValueError(f"cannot divide {total} between {len(weights)}")
    sum_of_weights = sum(weights)
    if sum_of_weights <= 0:
        weights, sum_of_weights = [1] * len(weights), len(weights)
    shares = [total * weight / sum_of_weights for weight in weights]
    parts = [int(share) for share in shares]
    missing = total - sum(parts)
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - shares[i], i))
    for i in order[:missing]:
        parts[i] += 1
    return parts


def split_usage(
    usage: Any, inputs: Sequence[float], outputs: Sequence[float] | None = None, *, depth: int = 3
) -> list[Any]:
    """Divide a usage object: counts of output by `outputs`, all other counts by `inputs`, totals by addition.

    Nested objects (`prompt_tokens_details`) are divided alike, `depth` levels deep; what is no count is copied to
    everybody.
    """
    if type(usage) is not dict or depth == 0:
        return [usage] * len(inputs)
    parts: list[dict[str, Any]] = [{} for _ in inputs]
    for name, value in usage.items():
        by = outputs if outputs is not None and name.startswith(_OUTPUT_PREFIXES) else inputs
        if type(value) is int and value >= 0:
            values: Sequence[Any] = apportion(value, by)
        elif type(value) is dict:
            values = split_usage(value, by, depth=depth - 1)
        else:
            values = [value] * len(parts)
        for part, share in zip(parts, values, strict=True):
            part[name] = share
    if type(usage.get("total_tokens")) is int:
        for part in parts:
            counts = [part[n] for n in ("prompt_tokens", "completion_tokens") if type(part.get(n)) is int]
            if counts and type(usage.get("prompt_tokens")) is int:
                part["total_tokens"] = sum(counts)
    return parts
