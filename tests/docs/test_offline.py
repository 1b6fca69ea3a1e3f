"""Commands of the pages that need nothing running end well when they are typed in, word for word.

Compiled where that is possible: it is how they are installed. `tests/proxy/compiled/test_process.py` runs them so.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from proxy.compiled import is_active
from proxy.compiled.build import why_not
from tests.controller.build import job
from tests.docs.pages import ROOT, Command, Page, every_page

GO_ON = ("serve", "up", "worker")
"""They serve until they are stopped: the tests of each start one."""
LIVE = ("ctl",)
"""They speak to a running proxy: `test_live.py` types those in."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_active() and why_not() is None, reason="the process that runs compiled types them in"),
]


def shown(page: Page) -> list[Command]:
    """Return the commands of a page's blocks that this file types in."""
    return [
        command
        for command in page.commands()
        if command.in_block
        and command.words[0] == "trimtab"
        and command.words[1:2]
        and command.words[1] not in (*GO_ON, *LIVE)
    ]


PAGES = [page for page in every_page() if shown(page)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the commands name."""
    (tmp_path / "trimtab.yaml").write_text("upstreams: [http://127.0.0.1:8000]\n")
    lines = [json.dumps({"arrival": 10.0 + n, "prompt_tokens": 50, "output_tokens": 40}) for n in range(30)]
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    journal: list[str] = []
    pool = PoolController(
        "pool", journal=journal.append, slo=SLO(e2e_s=6.0), law="deadline", mode="merge",
        setpoints=Setpoints(8, 0.0), bounds=Bounds(1, 32), now=0.0,
    )  # fmt: skip
    pool.admit(job(1.0), 1.0, Load())
    (tmp_path / "FILE").write_text("".join(journal))
    return tmp_path


async def type_in(command: Command, folder: Path) -> str:
    """Run a command; return what was wrong, "" for nothing."""
    if command.words[1] == "compile" and not is_active():
        return ""  # nothing can be compiled here, which is what it would say
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", *command.words[1:], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 110)
    return "" if process.returncode == 0 else f"{command.text}\n{output.decode()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_every_command_that_ends_by_itself_ends_well(page: Page, folder: Path) -> None:
    assert [fault for command in shown(page) if (fault := await type_in(command, folder))] == []
