"""A disk that hangs: serving goes on, the end comes, and nothing is written down twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from controller.decision import Decision
from proxy.config.model import Config, StateConfig
from proxy.observe.metrics import Metrics
from proxy.observe.traffic import Traffic
from proxy.state import keeper as module
from proxy.state.keeper import Keeper
from proxy.state.store import Store
from tests.support.virtual_clock import VirtualClock


class Disk:
    """Holds up whoever writes to the audit log while it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        record = Store.record

        def held_up(store: Store, entries: list[dict[str, Any]]) -> None:
            self.gate.wait(60)
            if self.fails:
                raise OSError("gone")
            record(store, entries)

        monkeypatch.setattr(Store, "record", held_up)
        monkeypatch.setattr(module, "FILE_S", 0.3)


def started(tmp_path: Path) -> Keeper:
    pools: Iterable[Any] = ()
    traffic = Traffic(Metrics(Config.model_validate({"upstreams": ["http://a:1"]}).pools))
    keeper = Keeper(StateConfig(path=str(tmp_path / "state.db")), traffic, lambda: pools, VirtualClock(0.0))
    keeper.start(dict)
    return keeper


def decision(number: int) -> Decision:
    return Decision(number, 0.0, 0.0, "default", "admin.pin", "fixed", "admin:a")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_hung_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    disk = Disk(monkeypatch)
    keeper = started(tmp_path)
    keeper.note(decision(1))
    disk.gate.clear()
    await keeper.save()
    assert keeper.kept is False
    disk.fails = fails
    disk.gate.set()
    while keeper._file.hangs:  # noqa: ASYNC110 - a thread tells nobody here when it ends
        await asyncio.sleep(0)
    disk.fails = False
    assert len(await keeper.audit(10)) == 1
    assert len(Store(tmp_path / "state.db").audit(10)) == 1
    assert keeper.kept is True
    await keeper.stop()


async def test_the_end_does_not_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    keeper = started(tmp_path)
    keeper.note(decision(1))
    disk.gate.clear()
    await keeper.stop()
    assert keeper.kept is False
    assert len(threading.enumerate()) > 1, "it is still at it"
    disk.gate.set()
