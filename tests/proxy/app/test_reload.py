"""A configuration that cannot be read in time: the old one stays, and the next reload is a new try."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack

import pytest

from proxy.admin import steering
from proxy.config.model import Config
from tests.proxy.app.conftest import Rig
from tests.proxy.app.upstream import Upstream


async def test_reading_that_hangs_is_given_up_and_a_further_reload_reads_again(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "READING_S", 0.05)
    gate = threading.Event()

    def hangs() -> Config:
        gate.wait(60)
        raise ValueError("too late to matter")

    async with AsyncExitStack() as stack:
        rig = await Rig(stack, {"upstreams": [upstream.url]}).start()
        rig.next = hangs
        problem = await rig.admin_json("POST", "/admin/v1/reload", status=422)
        assert "reading the configuration has taken more than 0.05 s" in problem["detail"]
        assert (await rig.admin_json("GET", "/admin/v1/config"))["generation"] == 1
        monkeypatch.setattr(rig.proxy._reading, "_patience_s", 30.0)
        rig.reload_to(upstreams=[upstream.url], slo={"e2e_ms": 4321})
        await rig.admin_json("POST", "/admin/v1/reload")
        assert (await rig.admin_json("GET", "/admin/v1/pools/default"))["slo"]["e2e_ms"] == 4321.0
        gate.set()
