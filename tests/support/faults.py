"""What upstreams do wrong in the storms: the behaviours that chaos draws from."""

from __future__ import annotations

from typing import Any

__all__ = ["FAULTS"]

FAULTS: tuple[dict[str, Any], ...] = (
    {"reset_before_head": True},
    {"close_before_head": True},
    {"garbage": True},
    {"cut_at": 60},
    {"cut_at": 60, "reset": True},
    {"stall_at": 100},
    {"hang": True},
    {"status": 503, "retry_after": "0"},
    {"status": 500},
    {"status": 429},
    {"drop_idle": True},
    {"close": True},
    {"delay": 0.02},
    {"gap": 0.002},
    {"shuffle": True},
    {"results": 1},
)
