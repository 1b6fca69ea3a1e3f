"""The proxy's benchmark: what is measured of whom, what is said of the rest, and that nothing is left behind."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bars import Bar
from benchmarks.proxy import relaying
from benchmarks.proxy.bench import FULL, QUICK, Bench, Effort
from benchmarks.proxy.peers import Peer
from benchmarks.proxy.processes import Processes
from benchmarks.proxy.relaying import TESTS, Relaying

NAMES = ("trimtab", "aiohttp", "envoy", "sglang-router", "litellm")


class FakeProcesses(Processes):
    """Starts nothing; `answers` gives what the load client would say of the proxy with that pid."""

    def __init__(self, answers: Any) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.asked: list[tuple[str, str]] = []
        self._answers = answers

    def start(self, argv: Sequence[str], core: str | None, *, env: Any = None, name: str) -> int:
        self.names[len(self.names)] = name
        return len(self.names) - 1

    def load(self, folder: Path, url: str, arguments: Sequence[str], core: str | None) -> dict[str, Any]:
        pid = int(next(a for a in arguments if a.startswith("proxy=")).removeprefix("proxy="))
        kind = next((a.partition("-us")[0] for a in arguments if "-us:" in a), "chat")
        test = {"step": "stream", "gap": "hold"}.get(kind, kind)
        self.asked.append((test, self.names[pid]))
        answer: dict[str, Any] = self._answers(test, self.names[pid], len(self.asked))
        return answer


def good(test: str, name: str, number: int) -> dict[str, Any]:
    """An answer with a figure that tells the proxies apart."""
    return {"ok": 32, "held": 1000, "proxy": {figure: 10.0 + NAMES.index(name) for figure in TESTS.values()}}


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = [Peer(name, lambda *_: ["true"], tests=("chat",) if name == "litellm" else tuple(TESTS)) for name in NAMES]
    monkeypatch.setattr(relaying, "PEERS", made)
    monkeypatch.setattr(relaying, "wait_until_ready", lambda *_: True)


def play(effort: Effort, answers: Any = good, tests: Sequence[str] = tuple(TESTS)) -> tuple[Bench, list[Bar]]:
    with FakeProcesses(answers) as processes:
        bench = Bench(processes, Path(), itertools.count(1), effort, "1", "0")
        relays = Relaying(bench, tests)
        relays.wait()
        relays.memory()
        return bench, relays.rounds()


def asked(bench: Bench) -> list[tuple[str, str]]:
    assert isinstance(bench.processes, FakeProcesses)
    return bench.processes.asked


def test_a_quick_run_has_the_bars_of_a_full_one() -> None:
    (quick, bars), (full, all_bars) = play(QUICK), play(FULL)
    assert bars == all_bars
    assert len(bars) == 8
    assert len(asked(quick)) < len(asked(full))
    assert quick.failures == full.failures == []


def test_a_quick_run_says_whom_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    bench, _ = play(QUICK)
    told = capsys.readouterr().out
    for test in TESTS:
        measured = {name for which, name in asked(bench) if which == test}
        able = {name for name in NAMES if name != "litellm" or test == "chat"}
        line = next((one for one in told.splitlines() if one.startswith(f"left out of --quick: {test} ")), "")
        assert {name for name in NAMES if name in line} == able - measured
    play(FULL)
    assert "left out" not in capsys.readouterr().out


def test_proxies_take_turns_in_every_round() -> None:
    bench, _ = play(QUICK, tests=["chat"])
    assert asked(bench) == [("chat", name) for name in NAMES] * QUICK.repeats


def test_memory_is_measured_once() -> None:
    bench, _ = play(FULL, tests=["hold"])
    assert asked(bench) == [("hold", name) for name in NAMES if name != "litellm"]


def test_a_run_without_answers_is_made_once_more() -> None:
    def late(test: str, name: str, number: int) -> dict[str, Any]:
        return good(test, name, number) | ({"ok": 0, "held": 0} if number == 1 else {})

    bench, bars = play(QUICK, late, ["chat"])
    assert asked(bench)[:2] == [("chat", "trimtab")] * 2
    assert len(bars) == 4
    assert bench.failures == []


@pytest.mark.parametrize(
    "wrong", [{"ok": 0, "held": 0}, {"errors": 3}, {"bad_status": 1}, {"held": 999}], ids=lambda wrong: str(wrong)
)
def test_what_was_not_measured_is_a_failure_and_never_a_bar(wrong: dict[str, int]) -> None:
    bench, bars = play(FULL, lambda *call: good(*call) | (wrong if call[1] == "trimtab" else {}), ["hold"])
    assert [name for name in bench.failures if name.startswith("trimtab hold: ")] == bench.failures != []
    assert bars == []
    assert bench.processes.folder.exists(), "what the proxies said is gone"


def test_a_proxy_that_does_not_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "wait_until_ready", lambda *_: False)
    bench, bars = play(QUICK, tests=["chat"])
    assert len(bench.failures) == len(NAMES)
    assert bars == []


def test_processes_and_what_they_wrote_are_gone_afterwards() -> None:
    with Processes() as processes:
        pid = processes.start(["sleep", "60"], None, name="one")
        assert (processes.folder / "one.log").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    assert not processes.folder.exists()


def test_what_processes_wrote_stays_where_something_went_wrong() -> None:
    with pytest.raises(SystemExit), Processes() as processes:
        raise SystemExit("did not start")
    assert processes.folder.exists()
