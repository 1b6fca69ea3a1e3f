"""A child process that never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from proxy.cli.child import Child, ChildFailed

ROOT = Path(__file__).resolve().parents[3]

# Says what it is, then starts a grandchild and waits.
POLITE = """
import json, signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("working", file=sys.stderr, flush=True)
print(json.dumps({"event": "ready", "grandchild": grandchild.pid}), flush=True)
time.sleep(600)
"""
STUBBORN = POLITE.replace("grandchild =", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ngrandchild =")


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    while alive(pid):  # noqa: ASYNC110 - the end of somebody else's child is no event of ours
        await asyncio.sleep(0.01)


async def start(script: str) -> tuple[Child, list[str]]:
    lines: list[str] = []
    return await Child.start([sys.executable, "-c", script], lines.append), lines


async def test_events_and_lines_are_told_apart() -> None:
    child, lines = await start(POLITE)
    assert (await child.event("ready"))["event"] == "ready"
    await child.stop(5.0)
    assert lines == ["working"]


@pytest.mark.parametrize("script", [POLITE, STUBBORN], ids=["polite", "stubborn"])
async def test_stop_leaves_nothing_of_the_group(script: str) -> None:
    child, _ = await start(script)
    grandchild = (await child.event("ready"))["grandchild"]
    await child.stop(0.2 if script is STUBBORN else 5.0)
    await gone(grandchild)
    assert not alive(child.pid)


async def test_a_child_that_ends_early_tells_its_code_and_last_words() -> None:
    child, _ = await start("import sys; print('no such model', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ChildFailed) as caught:
        await child.event("ready")
    assert caught.value.code == 2
    assert caught.value.lines == ("no such model",)
    await child.stop(1.0)


async def test_the_grandchildren_of_a_child_that_died_are_ended() -> None:
    child, _ = await start(POLITE)
    grandchild = (await child.event("ready"))["grandchild"]
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    assert alive(grandchild)
    await child.stop(1.0)
    await gone(grandchild)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
async def test_a_child_ends_when_its_parent_is_killed() -> None:
    script = f"""
import asyncio, sys
from proxy.cli.child import Child
async def main():
    child = await Child.start([sys.executable, "-c", {POLITE!r}], lambda line: None)
    await child.event("ready")
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    grandchildren = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    parent.kill()
    await parent.wait()
    await gone(pid)
    for grandchild in grandchildren:  # our own worker's engine watches its parent; this one does not
        os.kill(grandchild, signal.SIGKILL)
