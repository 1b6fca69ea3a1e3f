"""What survives a restart, and what does not get in its way."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from controller.experiment import Arm
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.slo import SLO
from proxy.config.model import Config, PoolConfig
from proxy.pool import controller_for
from proxy.state import capture, restore, restored_config
from proxy.store import Store, StoreError
from tests.proxy.app.conftest import Rig
from tests.proxy.app.upstream import Upstream

Make = Callable[..., Any]
POOL = "/admin/v1/pools/default"


def pool(**data: Any) -> PoolConfig:
    base = {"upstreams": ["http://a:1"], "slo": {"e2e_ms": 5_000}, "setpoints": {"max_batch_size": {"max": 64}}}
    return Config.model_validate(base | data).pools[0]


def observation(done: float, generation: int = 0) -> Observation:
    return Observation("default", done - 1.0, done, Result.OK, generation, dispatched=done - 0.9, batch=4,
                       upstream="http://a:1")  # fmt: skip


def saved(config: PoolConfig, controller: PoolController, recent: list[Observation] | None = None) -> dict[str, Any]:
    """Return what is kept, after a round trip through JSON."""
    kept: dict[str, Any] = json.loads(json.dumps(capture(config, controller, recent or [], 1000.0, 5000.0)))
    return kept


def restarted(config: PoolConfig, kept: dict[str, Any] | None, now: float = 10.0, wall: float = 5060.0) -> Any:
    controller = controller_for(restored_config(config, kept), now)
    return controller, restore(config, controller, kept, now, wall)


def test_what_operators_set_comes_back() -> None:
    before = controller_for(pool(), 1000.0)
    before.set_slo(SLO(e2e_s=3.0, quantile=0.9), 1000.0, "admin:a")
    before.pin({"max_batch_size": 5}, 1000.0, "admin:a")
    before.set_law("fixed", {}, 1000.0, "admin:a")
    before.freeze(True, 1000.0, "admin:a")
    after, _ = restarted(pool(), saved(pool(), before))
    assert after.slo == SLO(e2e_s=3.0, quantile=0.9)
    assert (after.pins, after.law_name, after.frozen) == ({"max_batch_size": 5.0}, "fixed", True)
    assert after.setpoints.max_batch_size == 5


def test_knobs_go_on_where_they_stood() -> None:
    before = controller_for(pool(), 1000.0)
    before.pin({"max_batch_size": 37, "window_ms": 11}, 1000.0, "admin:a")
    before.unpin(None, 1000.0, "admin:a")
    after, _ = restarted(pool(), saved(pool(), before))
    assert (after.setpoints.max_batch_size, after.setpoints.window_ms, after.pins) == (37, 11.0, {})


def test_a_key_that_changed_in_the_file_wins() -> None:
    before = controller_for(pool(), 1000.0)
    before.set_slo(SLO(e2e_s=3.0), 1000.0, "admin:a")
    before.set_law("fixed", {}, 1000.0, "admin:a")
    before.pin({"max_batch_size": 37}, 1000.0, "admin:a")
    before.unpin(None, 1000.0, "admin:a")
    new = pool(slo={"e2e_ms": 8_000}, law="step", setpoints={"max_batch_size": {"initial": 3, "max": 8}})
    after, _ = restarted(new, saved(pool(), before))
    assert after.slo == SLO(e2e_s=8.0)
    assert (after.law_name, after.setpoints.max_batch_size) == ("step", 3)


def test_a_pin_that_no_longer_fits_is_left_out() -> None:
    before = controller_for(pool(), 1000.0)
    before.pin({"max_batch_size": 60}, 1000.0, "admin:a")
    after, _ = restarted(pool(setpoints={"max_batch_size": {"max": 8}}), saved(pool(), before))
    assert after.pins == {}


def test_what_was_learned_is_learned_again() -> None:
    before = controller_for(pool(), 1000.0)
    recent = [observation(1000.0 - age) for age in range(200, 0, -1)]
    for obs in recent:
        before.observe(obs)
    after, shown = restarted(pool(), saved(pool(), before, recent))
    assert shown == 200
    assert after.snapshot(10.0)["model"]["samples"] == before.snapshot(1000.0)["model"]["samples"]


def test_observations_keep_their_age() -> None:
    before = controller_for(pool(), 1000.0)
    kept = saved(pool(), before, [observation(995.0), observation(990.0)])
    after, _ = restarted(pool(), kept, now=10.0, wall=5000.0 + 30.0)
    assert after.snapshot(10.0)["counts"]["ok"] == 2, "35 and 40 s old: within the window of a minute"
    after, _ = restarted(pool(), kept, now=10.0, wall=5000.0 + 300.0)
    assert after.snapshot(10.0)["counts"]["ok"] == 0


def test_observations_of_older_knobs_are_no_evidence_for_the_present_ones() -> None:
    before = controller_for(pool(), 1000.0)
    before.pin({"max_batch_size": 5}, 1000.0, "admin:a")
    kept = saved(pool(), before, [observation(999.0, generation=0), observation(999.5, generation=1)])
    after, shown = restarted(pool(), kept, wall=5000.0)
    assert shown == 2
    assert after.snapshot(10.0)["generation_samples"] == 1


@pytest.mark.parametrize("kept", [None, {}, {"version": 0}])
def test_what_another_version_kept_is_ignored(kept: dict[str, Any] | None) -> None:
    after, shown = restarted(pool(), kept)
    assert (shown, len(after.decisions)) == (0, 0)


def test_the_file_keeps_the_last_state_and_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "state.db")
    store.save({"a": {"n": 1}, "b": {"n": 2}})
    store.save({"a": {"n": 3}})
    store.record([{"id": 1}, {"id": 2}])
    store.record([{"id": 3}])
    again = Store(store.path)
    assert again.load() == {"a": {"n": 3}, "b": {"n": 2}}
    assert [entry["id"] for entry in again.audit(2)] == [3, 2]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("this is no database, and long enough that nobody could take it for an empty one " * 20)
    with pytest.raises(StoreError, match=r"state\.path: .*state\.db: file is not a database"):
        Store(path)


def test_a_file_with_a_broken_entry_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT INTO pools VALUES ('default', '{')")
    with pytest.raises(StoreError, match=r"state\.path: .*state\.db cannot be read: .*; move it away"):
        store.load()


@pytest.mark.parametrize("nonsense", [{}, {"observations": [[1]]}, {"setpoints": None}, {"slo": {"x": 1}, "pins": 5}])
async def test_entries_that_make_no_sense_stop_nobody_from_starting(
    tmp_path: Path, make_rig: Make, upstream: Upstream, nonsense: dict[str, Any]
) -> None:
    config = pool(upstreams=[upstream.url])
    kept = saved(config, controller_for(config, 0.0)) | nonsense if nonsense else {"version": 1}
    Store(tmp_path / "state.db").save({"default": kept})
    data = {"slo": {"e2e_ms": 5_000}, "setpoints": {"max_batch_size": {"max": 64}}}
    rig = await make_rig(upstreams=[upstream.url], state={"path": str(tmp_path / "state.db")}, **data)
    assert await rig.said() == "a"
    assert (await rig.admin_json("GET", POOL))["setpoints"]["max_batch_size"] == 16


async def test_a_restart_under_load_goes_on_where_it_stopped(tmp_path: Path, upstream: Upstream) -> None:
    data = {"upstreams": [upstream.url], "slo": {"e2e_ms": 9_000}, "state": {"path": str(tmp_path / "state.db")}}
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        await asyncio.gather(*(rig.said() for _ in range(20)))
        await rig.admin_json("PATCH", f"{POOL}/slo", json={"e2e_ms": 4_000})
        await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 9})
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        state = await rig.admin_json("GET", POOL)
        assert (state["slo"]["e2e_ms"], state["pins"]) == (4_000, {"max_batch_size": 9})
        assert state["live"]["counts"]["ok"] == 20
        assert state["live"]["model"]["samples"] == 20
        audit = (await rig.admin_json("GET", "/admin/v1/audit"))["decisions"]
        assert [entry["rule"] for entry in audit] == ["admin.pin", "admin.slo"]


async def test_without_a_file_nothing_is_kept_and_the_log_is_in_memory(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 9})
    audit = (await rig.admin_json("GET", "/admin/v1/audit"))["decisions"]
    assert [(entry["rule"], entry["actor"]) for entry in audit] == [("admin.pin", "admin:api")]
    await rig.proxy.keeper.save()


async def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, make_rig: Make, upstream: Upstream
) -> None:
    path = tmp_path / "state.db"
    rig = await make_rig(upstreams=[upstream.url], state={"path": str(path)})
    path.unlink()
    path.mkdir()
    await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 9})
    await rig.proxy.keeper.save()
    assert await rig.said() == "a"


def test_a_restart_amid_an_experiment_ends_it_in_favour_of_the_law_that_stood() -> None:
    before = controller_for(pool(), 0.0)
    before.set_law("aimd", {"least": 20}, 1.0, "admin:test")
    before.start_experiment(Arm("aimd", {"least": 20}), Arm("bandit"), 2.0, "admin:test", seed=1)
    for second in range(3, 400):
        before.tick(float(second), Load())
        if before.law_name == "bandit":
            break
    after, _ = restarted(pool(), saved(pool(), before))
    assert (before.law_name, after.law_name, after.law_options) == ("bandit", "aimd", {"least": 20})


async def test_promises_of_classes_and_options_of_laws_survive_a_restart() -> None:
    config = pool(classes={"default": {}, "batch": {"slo": {"e2e_ms": 60_000}}})
    before = controller_for(config, 0.0)
    before.set_slo(SLO(e2e_s=30.0), 1.0, "admin:test", "batch")
    before.set_law("aimd", {"least": 20}, 2.0, "admin:test")
    after = controller_for(config, 0.0)
    restore(config, after, saved(config, before), 1000.0, 5000.0)
    assert after.slo_of("batch") == SLO(e2e_s=30.0)
    assert (after.law_name, after.law_options) == ("aimd", {"least": 20})
