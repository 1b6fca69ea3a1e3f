"""Which calls share an upstream call, by what the pool's dispatch says and what the operation allows."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config.model import PoolConfig
from proxy.config.terms import Merging, Terms
from proxy.wire.base import Route

URL = "http://127.0.0.1:9"
EMBED = Route("embeddings", generates=False, auto_merge=True)
RERANK = Route("rerank", generates=False)
PREDICT = Route("tfserving.predict", generates=False)
COMPLETE = Route("completions")
NEVER, RECOGNISED, VOUCHED = Merging


@pytest.mark.parametrize(
    ("config", "merged"),
    [
        ({}, {EMBED: RECOGNISED}),
        ({"dispatch": "merge"}, dict.fromkeys((EMBED, RERANK, PREDICT, COMPLETE), VOUCHED)),
        ({"dispatch": "gate"}, {}),
        ({"wire": "openai"}, {EMBED: VOUCHED}),
        ({"upstreams": [{"url": URL, "profile": "vllm"}]}, {EMBED: VOUCHED}),
        ({"upstreams": [{"url": URL, "profile": "tf-serving"}]}, {PREDICT: VOUCHED}),
        ({"upstreams": [URL, {"url": URL + "0", "profile": "vllm"}]}, {EMBED: RECOGNISED}),
        ({"upstreams": [URL, {"url": URL + "0", "profile": "llamacpp"}]}, {EMBED: RECOGNISED}),
        ({"upstreams": [URL, {"url": URL + "0", "profile": "triton"}]}, {}),
    ],
)
def test_what_merges(config: dict[str, Any], merged: dict[Route, Merging]) -> None:
    terms = Terms(PoolConfig.model_validate({"upstreams": [URL], **config}))
    for route in (EMBED, RERANK, PREDICT, COMPLETE):
        assert terms.merging(route) is merged.get(route, NEVER), route.name
