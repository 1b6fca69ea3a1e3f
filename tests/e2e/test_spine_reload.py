"""Reading the configuration again while requests run: no error, the new setting in force, a broken file refused."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.load import streaming_load
from tests.e2e.spine_process import Trimtab, mock_upstream
from tests.e2e.worker_process import eventually

SLOW = {"x-mock": json.dumps({"gap": 0.01, "tokens": 8})}


@pytest.fixture(scope="module")
def mocks() -> Iterator[tuple[str, str]]:
    with mock_upstream() as one, mock_upstream() as two:
        yield one, two


def write(file: Path, upstream: str, extra: str = "") -> None:
    file.write_text(f"upstreams: ['{upstream}']\nlog: {{format: json}}\n{extra}")


def by_hang_up(running: Trimtab) -> None:
    running.hang_up()


def by_admin_api(running: Trimtab) -> None:
    status, document = running.request("POST", "/admin/v1/reload")
    assert status == 200, document


def served(running: Trimtab) -> dict[str, int]:
    """Return how many calls each upstream of the pool in force has answered."""
    return {upstream["url"]: upstream["served"] for upstream in running.pool()["stats"]["upstreams"]}


@pytest.mark.parametrize("ask", [by_hang_up, by_admin_api])
async def test_reload_under_load_loses_nothing_and_puts_the_change_in_force(
    tmp_path: Path, mocks: tuple[str, str], ask: Callable[[Trimtab], None]
) -> None:
    one, two = mocks
    file = tmp_path / "trimtab.yaml"
    write(file, one)
    with Trimtab.serve(tmp_path) as running:
        async with streaming_load(running.proxy, clients=8, tokens=(1, 2), headers=SLOW) as load:
            await load.more(8)
            assert served(running)[one]
            write(file, two, "slo: {e2e_ms: 45000}\nsetpoints: {max_batch_size: 12}\n")
            await asyncio.to_thread(ask, running)

            def in_force() -> bool:
                return running.pool()["slo"]["e2e_ms"] == 45000.0 and served(running).get(two, 0) > 0

            await asyncio.to_thread(eventually, in_force)
            await load.more(16)
            status, document = await asyncio.to_thread(running.request, "GET", "/admin/v1/config")
            assert status == 200
            assert document["generation"] == 2
        assert load.failures == []
        assert running.stop() == 0


async def test_a_broken_file_changes_nothing_and_says_so(tmp_path: Path, mocks: tuple[str, str]) -> None:
    file = tmp_path / "trimtab.yaml"
    write(file, mocks[0], "slo: {e2e_ms: 40000}\n")
    with Trimtab.serve(tmp_path) as running:

        def refused_by_admin_api() -> dict[str, Any]:
            status, document = running.request("POST", "/admin/v1/reload")
            assert status == 422
            return dict(document)

        async with streaming_load(running.proxy, clients=4, tokens=(1, 2), headers=SLOW) as load:
            await load.more(4)
            write(file, mocks[1], "slo: {e2e_mss: 50000}\n")
            problem = await asyncio.to_thread(refused_by_admin_api)
            assert "e2e_mss" in problem["detail"]
            assert "e2e_ms" in problem["detail"]
            await asyncio.to_thread(by_hang_up, running)
            said = await asyncio.to_thread(running.says, r"(reload refused, the old configuration stays.*)")
            assert "e2e_mss" in said
            assert "trimtab.yaml" in said
            await load.more(8)
            pool = await asyncio.to_thread(running.pool)
            assert pool["slo"]["e2e_ms"] == 40000.0
            assert list(served(running)) == [mocks[0]]
        assert load.failures == []
        write(file, mocks[0], "slo: {e2e_ms: 50000}\n")
        await asyncio.to_thread(by_admin_api, running)
        assert running.pool()["slo"]["e2e_ms"] == 50000.0, "a repaired file is taken"


def test_it_ends_while_a_reload_hangs_in_reading_a_pipe(tmp_path: Path, mocks: tuple[str, str]) -> None:
    file = tmp_path / "trimtab.yaml"
    write(file, mocks[0])
    with Trimtab.serve(tmp_path) as running:
        threads = f"/proc/{running.process.pid}/task"
        file.unlink()
        os.mkfifo(file)
        before = len(os.listdir(threads))
        running.hang_up()
        eventually(lambda: len(os.listdir(threads)) > before)
        assert running.stop() == 0
