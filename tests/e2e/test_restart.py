"""A restart in the middle of load: what operators set and what the law learned are back."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.spine_process import Trimtab, mock_upstream
from tests.e2e.worker_process import eventually

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
HEADERS = {"Content-Type": "application/json", "x-mock": json.dumps({"delay": 0.02})}


class Load:
    """Clients that go on whatever happens, each with one request at a time."""

    def __init__(self, url: str, clients: int = 6) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._over = threading.Event()
        self.answered = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with urlopen(Request(self._url, BODY, HEADERS), timeout=30) as answer:
                    answer.read()
                self.answered += 1
            except (URLError, ConnectionError):
                if self._over.wait(0.02):
                    return

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_restart_under_load_does_not_start_from_cold(tmp_path: Path, workers: str) -> None:
    with mock_upstream() as url:
        arguments = (
            "--upstream", url, "--workers", workers, "--set", "slo.e2e_ms=9000", "--set", "law=aimd",
            "--set", "tick_s=0.2",
            "--set", "setpoints.max_batch_size={initial: 2, min: 1, max: 64}",
            "--set", f"state.path={tmp_path / 'state.db'}",
        )  # fmt: skip
        with Trimtab.serve(tmp_path, *arguments) as first:
            load = Load(first.proxy)
            try:
                first.pool("PATCH", "/slo", {"e2e_ms": 4000})
                # The law has much room and takes it, step by step, once it has seen enough.
                eventually(lambda: first.pool()["setpoints"]["max_batch_size"] > 2, within_s=60)
                first.pool("PATCH", "/setpoints", {"window_ms": 3})
                before = first.pool()
                assert first.stop() == 0
            finally:
                load.stop()
        with Trimtab.serve(tmp_path, *arguments) as second:
            after = second.pool()
            decisions = second.request("GET", "/admin/v1/pools/default/decisions")[1]["decisions"]
            load = Load(second.proxy)
            try:
                eventually(lambda: load.answered > 20, within_s=60)
                later = second.pool()
            finally:
                load.stop()
            assert second.stop() == 0
    assert after["slo"]["e2e_ms"] == 4000
    assert after["pins"] == {"window_ms": 3}
    assert after["setpoints"]["max_batch_size"] >= before["setpoints"]["max_batch_size"] > 2
    assert after["live"]["model"]["samples"] >= 35, "it knows what was learned before the first new request"
    assert {decision["actor"] for decision in decisions} >= {"admin:restore"}
    assert later["setpoints"]["max_batch_size"] > 2, "nor does it fall back once new requests come"
