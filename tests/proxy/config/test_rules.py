"""Where a pool's knobs start."""

from __future__ import annotations

from typing import Any

import pytest

from controller.setpoints import Setpoints
from proxy.config.model import PoolConfig
from proxy.config.rules import controller_for


@pytest.mark.parametrize(
    ("upstreams", "more", "starts"),
    [
        (1, {}, (16, 0.0)),
        (4, {}, (64, 0.0)),
        (40, {}, (256, 0.0)),
        (4, {"setpoints": {"max_batch_size": {"max": 40}}}, (40, 0.0)),
        (4, {"setpoints": {"max_batch_size": {"min": 20}}}, (80, 0.0)),
        (4, {"setpoints": {"max_batch_size": 8, "window_ms": 3}}, (8, 3.0)),
        (4, {"dispatch": "merge"}, (16, 5.0)),
    ],
)
def test_a_gate_begins_with_as_many_for_each_upstream_as_one_alone_would_have(
    upstreams: int, more: dict[str, Any], starts: tuple[int, float]
) -> None:
    urls = [f"http://127.0.0.1:{9000 + index}" for index in range(upstreams)]
    config = PoolConfig.model_validate({"name": "default", "upstreams": urls, **more})
    assert controller_for(config, 0.0).setpoints == Setpoints(*starts)
