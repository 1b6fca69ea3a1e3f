"""Dividing the bill of a merged call between its callers, to the last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.wire.base import LARGEST_COUNT, MergeMismatch
from proxy.wire.envelope import DEPTH, has_words

__all__ = ["apportion", "split_usage"]

_OUTPUT_PREFIXES = ("completion", "output")


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` in proportion to `weights` so that the parts add up to it (largest remainders).

    Equal parts when nobody has any weight. Raises ValueError when there is nobody or `total` is negative.
    """
    if not weights or total < 0:
        raise ValueError(f"cannot divide {total} between {len(weights)}")
    count = len(weights)
    if weights[0] == weights[-1] and all(weight == weights[0] for weight in weights):
        part, missing = divmod(total, count)
        return [part + 1] * missing + [part] * (count - missing)
    sum_of_weights = sum(weights)
    shares = [total * weight / sum_of_weights for weight in weights]
    parts = [int(share) for share in shares]
    missing = total - sum(parts)
    if missing > 0:
        order = sorted(range(count), key=lambda i: (parts[i] - shares[i], i))
        for i in order[:missing]:
            parts[i] += 1
    return parts


def split_usage(
    usage: Any, inputs: Sequence[float], outputs: Sequence[float] | None = None, *, depth: int = 3
) -> list[Any]:
    """Divide a usage object: counts of output by `outputs`, all other counts by `inputs`, totals by addition.

    Nested objects (`prompt_tokens_details`) are divided alike, `depth` levels deep; what is no count is copied to
    everybody. Raises MergeMismatch where that has words, which may be about one caller's input.
    """
    if type(usage) is not dict or depth == 0:
        if has_words(usage, DEPTH):
            raise MergeMismatch("the usage holds words")
        return [usage] * len(inputs)
    counted = [name for name in ("prompt_tokens", "completion_tokens") if type(usage.get(name)) is int]
    added_up = "prompt_tokens" in counted and type(usage.get("total_tokens")) is int
    parts: list[dict[str, Any]] = [{} for _ in inputs]
    for name, value in usage.items():
        by = outputs if outputs is not None and name.startswith(_OUTPUT_PREFIXES) else inputs
        if added_up and name == "total_tokens":
            values: Sequence[Any] = [value] * len(parts)  # keeps its place in the order
        elif type(value) is int and 0 <= value <= LARGEST_COUNT:
            values = apportion(value, by)
        elif type(value) is dict:
            values = split_usage(value, by, depth=depth - 1)
        elif has_words(value, DEPTH):
            raise MergeMismatch(f"{name[:40]!r} in the usage holds words")
        else:
            values = [value] * len(parts)
        for index, share in enumerate(values):
            parts[index][name] = share
    if added_up:
        for part in parts:
            total: int = part["prompt_tokens"]
            if len(counted) == 2:
                total += part["completion_tokens"]
            part["total_tokens"] = total
    return parts
