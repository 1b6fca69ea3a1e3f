"""Which calls share an upstream call, by what the pool's dispatch says and what the operation allows."""

from __future__ import annotations

import pytest

from proxy.config.model import PoolConfig
from proxy.pool import Pool
from proxy.wire.base import Call, Route
from tests.support.virtual_clock import VirtualClock

EMBED = Route("embeddings", generates=False, auto_merge=True)
RERANK = Route("rerank", generates=False)
COMPLETE = Route("completions")


@pytest.mark.parametrize(
    ("dispatch", "merged"),
    [("auto", {EMBED}), ("merge", {EMBED, RERANK, COMPLETE}), ("gate", set())],
)
async def test_what_merges(dispatch: str, merged: set[Route]) -> None:
    config = PoolConfig.model_validate({"upstreams": ["http://127.0.0.1:9"], "dispatch": dispatch})
    pool = Pool(config, clock=VirtualClock())
    calls = [Call(route, b"", compat_key="k") for route in (EMBED, RERANK, COMPLETE)]
    assert {call.route for call in calls if pool.terms.mergeable(call)} == merged
    assert not pool.terms.mergeable(Call(EMBED, b"", compat_key=None))
