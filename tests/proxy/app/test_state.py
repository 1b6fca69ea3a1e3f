"""What survives a restart, and what does not get in its way."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.slo import SLO
from controller.tune.experiment import Arm
from proxy.config.model import Config, PoolConfig
from proxy.dispatch.pool import controller_for
from proxy.state.snapshot import capture, restore, restored_config
from proxy.state.store import Store, StoreError
from tests.proxy.app.conftest import Rig
from tests.proxy.app.upstream import Upstream
from tests.support.damaged_state import DAMAGES

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
    store.prepare()
    store.save({"a": {"n": 1}, "b": {"n": 2}})
    store.save({"a": {"n": 3}})
    store.record([{"id": 1}, {"id": 2}])
    store.record([{"id": 3}])
    again = Store(store.path)
    assert again.load() == {"a": {"n": 3}, "b": {"n": 2}}
    assert [entry["id"] for entry in again.audit(2)] == [3, 2]


def kept_file(path: Path) -> Store:
    """A good file, with a pool, a decision and requests to learn from; nobody holds it."""
    controller = controller_for(pool(), 1000.0)
    controller.pin({"max_batch_size": 5}, 1000.0, "admin:a")
    store = Store(path)
    assert store.prepare() is None
    state = saved(pool(), controller, [observation(1000.0 - age / 10) for age in range(200, 0, -1)])
    store.save({"default": state, "other": {"version": 1}, "/plans": {"expiring": [], "planned": []}})
    store.record([decision.as_dict() for decision in controller.decisions.latest(10)])
    store.close()
    return store


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_raises_anything_but_store_error_and_what_is_moved_aside_is_whole(
    damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "state.db"
    store = kept_file(path)
    DAMAGES[damage](path)
    before = path.read_bytes() if path.is_file() else None
    found, refused = None, None
    try:
        found = store.prepare()
    except StoreError as error:
        refused = str(error)
    finally:
        store.close()
    if refused is not None:
        assert f"state.path: {path}: " in refused
        assert before is None or path.read_bytes() == before, "what is not ours stays as it is"
        return
    aside = list(path.parent.glob("state.db.damaged-*"))
    assert (found is None) == (not aside)
    if found is not None:
        assert str(aside[0]) in found
        assert aside[0].read_bytes() == before
    store.load()
    store.save({"default": {"n": 1}})
    store.record([{"id": 1}])
    assert Store(path).load()["default"] == {"n": 1}
    assert store.audit(1) == [{"id": 1}]


@pytest.mark.parametrize("damage", ["text", "200 flipped bits", "half", "other columns", "schema page"])
def test_a_damaged_file_is_moved_aside_and_the_oldest_of_many_go(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for _ in range(5):
        store = kept_file(path)
        DAMAGES[damage](path)
        said = store.prepare()
        assert said is not None
        assert "it was moved to" in said
        assert store.load() == {}
        store.close()
    assert len(list(tmp_path.glob("state.db.damaged-*[0-9]"))) == 3


def test_a_file_that_somebody_has_for_something_else_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "trimtab.yaml"
    notes.write_text("upstreams: [http://a:1]\n")
    with pytest.raises(StoreError, match="it is no database; give a file of its own"):
        Store(notes).prepare()
    assert notes.read_text() == "upstreams: [http://a:1]\n"
    shop = tmp_path / "shop.db"
    with sqlite3.connect(shop) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
        connection.execute("CREATE TABLE orders (name TEXT)")
    with pytest.raises(StoreError, match="somebody else's"):
        Store(shop).prepare()


def test_entries_that_cannot_be_read_are_left_out_and_the_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = kept_file(tmp_path / "state.db")
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE pools SET state = '{' WHERE name = 'default'")
        connection.execute("INSERT INTO audit (entry) VALUES ('{')")
    assert store.load() == {"other": {"version": 1}, "/plans": {"expiring": [], "planned": []}}
    assert "what was kept of pool default is damaged and left out" in caplog.text
    assert [entry["rule"] for entry in store.audit(5)] == ["admin.pin"]


def test_requests_whose_numbers_cannot_be_are_left_out_and_the_others_are_learned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = saved(pool(), controller_for(pool(), 1000.0), [observation(999.0 - age / 10) for age in range(10)])
    rows = kept["observations"]
    done, prompt = (kept["fields"].index(name) for name in ("done", "prompt_tokens"))
    rows[0][done], rows[1][done], rows[2][prompt], rows[3] = 1e300, float("nan"), -5, [1]
    _, shown = restarted(pool(), kept)
    assert shown == 6
    assert "4 of the requests that were kept to learn from are damaged" in caplog.text


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.db"
    store = kept_file(path)
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    path.chmod(0o644)
    store.prepare()
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    store.save({"default": {}})
    assert path.stat().st_mode & 0o777 == 0o600


def test_one_process_writes_a_file_and_another_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first, second = kept_file(path), Store(path)
    first.prepare()
    with pytest.raises(StoreError, match=rf"another process keeps its state there \(pid {os.getpid()}\)"):
        second.prepare()
    assert second.load()["other"] == {"version": 1}
    first.close()
    assert second.prepare() is None
    second.close()


async def test_two_proxies_on_one_file_both_serve_and_the_second_says_so(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"upstreams": [upstream.url], "state": {"path": str(tmp_path / "state.db")}}
    async with AsyncExitStack() as stack:
        first = await Rig(stack, data).start()
        async with AsyncExitStack() as inner:
            second = await Rig(inner, data).start()
            assert "another process keeps its state there" in caplog.text
            assert await first.said() == await second.said() == "a"
            assert (first.proxy.keeper.kept, second.proxy.keeper.kept) == (True, False)
            await second.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 7})
            audit = (await second.admin_json("GET", "/admin/v1/audit"))["decisions"]
            assert [entry["rule"] for entry in audit] == ["admin.pin"]
            await first.proxy.stop()
            await second.proxy.keeper.save()
            assert second.proxy.keeper.kept
    assert Store(tmp_path / "state.db").load()["default"]["pins"] == {"max_batch_size": 7.0}


@pytest.mark.parametrize("damage", [*list(DAMAGES)[::4], "odd audit", "odd plans", "plans of another shape"])
async def test_whatever_is_wrong_with_the_file_the_proxy_serves_and_takes_orders(
    damage: str, tmp_path: Path, upstream: Upstream
) -> None:
    path = tmp_path / "state" / "state.db"
    kept_file(path)
    DAMAGES[damage](path)
    data = {"upstreams": [upstream.url], "state": {"path": str(path)}}
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        assert await rig.said() == "a"
        await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 9})
        audit = (await rig.admin_json("GET", "/admin/v1/audit"))["decisions"]
        assert audit[0]["rule"] == "admin.pin"


async def metrics(rig: Rig) -> str:
    async with rig.http.get(f"{rig.admin}/metrics") as answer:
        return await answer.text()


async def test_a_full_disk_is_said_once_and_what_was_decided_meanwhile_is_written_later(
    tmp_path: Path, make_rig: Make, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.db"
    rig = await make_rig(upstreams=[upstream.url], state={"path": str(path)})
    keeper = rig.proxy.keeper
    await keeper.save()
    store, full = keeper._store, True
    save = store.save

    def refuse(states: Any) -> None:
        if full:
            raise OSError("database or disk is full")
        save(states)

    store.save = refuse
    for size in range(3, 9):
        await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": size})
        await keeper.save()
    assert not keeper.kept
    assert caplog.text.count("disk is full") == 1
    assert "trimtab_state_kept 0.0" in (await metrics(rig))
    audit = (await rig.admin_json("GET", "/admin/v1/audit"))["decisions"]
    assert [entry["new"]["max_batch_size"] for entry in audit] == [8, 7, 6, 5, 4, 3]
    full = False
    await keeper.save()
    assert keeper.kept
    assert "trimtab_state_kept 1.0" in (await metrics(rig))
    assert len(Store(path).audit(10)) == 6


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
