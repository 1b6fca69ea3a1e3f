"""Blocking work that may hang holds up neither its loop nor the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from proxy.aside import Aside, Overdue


def refuse() -> None:
    raise LookupError("not here")


async def test_what_work_returns_or_raises_is_handed_on() -> None:
    aside = Aside("adding", 30.0)
    assert await aside.run(lambda: 1 + 1) == 2
    with pytest.raises(LookupError, match="not here"):
        await aside.run(refuse)
    assert not aside.hangs


async def test_work_that_hangs_is_given_up_and_no_more_than_so_many_at_once() -> None:
    gate = threading.Event()
    aside = Aside("reading", 0.01, most_overdue=2)
    outcomes = []
    for _ in range(2):
        with pytest.raises(Overdue, match=r"reading has taken more than 0\.01 s") as caught:
            await aside.run(gate.wait)
        outcomes.append(caught.value.outcome)
    with pytest.raises(Overdue, match="reading still hangs") as caught:
        await aside.run(gate.wait)
    assert caught.value.outcome is None
    assert aside.hangs
    gate.set()
    assert await asyncio.gather(*outcomes) == [True, True]
    assert not aside.hangs
    with pytest.raises(LookupError):
        await Aside("reading", 30.0, most_overdue=2).run(refuse)


async def test_it_is_an_error_of_the_system_like_others_that_a_disk_makes() -> None:
    gate = threading.Event()
    with pytest.raises(OSError, match="more than"):
        await Aside("reading", 0.01).run(gate.wait)
    gate.set()


def test_a_process_ends_while_work_hangs() -> None:
    program = (
        "import asyncio, threading\n"
        "from proxy.aside import Aside, Overdue\n"
        "async def main():\n"
        "    try:\n"
        "        await Aside('waiting', 0.01).run(threading.Event().wait)\n"
        "    except Overdue as error:\n"
        "        print(error)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "waiting has taken more than 0.01 s\n"
    assert ended.stderr == ""
