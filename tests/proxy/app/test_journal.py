"""What a running proxy's controllers were told is enough to make them decide the same again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.replay import replay
from controller.simulator.cli import main
from tests.proxy.app.conftest import Rig
from tests.proxy.app.upstream import Upstream


async def test_a_live_pools_decisions_are_replayed_exactly(
    make_rig: Callable[..., Any], upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.jsonl"
    rig: Rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 9000}, log={"journal": str(path)})
    await asyncio.gather(*(rig.said() for _ in range(20)))
    async with rig.http.patch(f"{rig.admin}/admin/v1/pools/default/slo", json={"e2e_ms": 5000}) as answer:
        assert answer.status == 200, await answer.text()
    rig.proxy.pools["default"].tick(rig.proxy.clock.now())
    decided = [entry.text for entry in rig.proxy.pools["default"].controller.decisions.since(0)]
    await rig.proxy.stop()
    with path.open() as lines:
        again = replay(lines)["default"]
    assert again.different == []
    assert again.calls["observe"] >= 20
    assert [entry.text for entry in again.decisions] == decided
    assert main(["--replay", str(path)]) == 0
    assert "0 answers differ" in capsys.readouterr().out
