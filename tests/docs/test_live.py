"""Commands that a page shows for a running proxy do what they say when they are typed in, word for word."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from datetime import date, timedelta
from typing import Any

import pytest

from tests.docs.pages import ROOT, Command, Page, every_page
from tests.proxy.app.conftest import make_rig
from tests.support.mock_upstream import MockUpstream

__all__ = ["make_rig"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")]

RUN_HERE = re.compile(r"^(curl |trimtab ctl )")
ENDLESS = re.compile(r"--follow|--watch|/events|-N\b|ctl experiment")
"""Commands that go on until one stops them."""
ELSEWHERE = re.compile(r"https://|\$\(|<|gpu-\d|:3000|:9090|:9091|\$TRIMTAB|\$TOKEN")
"""Commands about a machine that is not this one, or a variable that the reader has."""


def shown(page: Page) -> list[Command]:
    """Return the commands of a page's blocks that speak to a proxy or a worker on this machine."""
    return [
        command
        for command in page.commands()
        if command.in_block
        and RUN_HERE.match(command.text)
        and not ENDLESS.search(command.text)
        and not ELSEWHERE.search(command.text)
    ]


PAGES = [page for page in every_page() if shown(page) and "servers" not in page.name]


class Live:
    """A proxy with traffic behind it, and what one must put in for the addresses and days that pages show."""

    def __init__(self, data: str, admin: str, upstream: str) -> None:
        self._places = {
            r"(?:127\.0\.0\.1|localhost|HOST):8080": data.removeprefix("http://"),
            r"(?:127\.0\.0\.1|localhost|HOST):8081": admin.removeprefix("http://"),
            r"(?:127\.0\.0\.1|localhost|HOST):8000": upstream.removeprefix("http://"),
            r"\bPOOL\b": "default",
        }
        self._admin = admin

    async def run(self, command: Command) -> str:
        """Type a command into a shell; return what was wrong, "" for nothing."""
        text = command.text
        for place, ours in self._places.items():
            text = re.sub(place, ours, text)
        for ahead, shown_day in enumerate(("2030-01-31", "2030-02-01"), 1):
            text = text.replace(shown_day, f"{date.today() + timedelta(days=ahead)}")
        text = re.sub(r"^curl ", "curl --fail-with-body --max-time 20 ", text)
        text = re.sub(r"^trimtab ctl ", f"{sys.executable} -m proxy.cli ctl --url {self._admin} ", text)
        process = await asyncio.create_subprocess_shell(
            text, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        return "" if process.returncode == 0 else f"{command.text}\n{output.decode()}"


@pytest.fixture
async def live(make_rig: Callable[..., Any]) -> AsyncIterator[Live]:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url], slo={"ttft_ms": 5000}, law_options={"admission": False})
        for _ in range(6):
            answers = await asyncio.gather(*(rig.chat(stream=True) for _ in range(10)))
            for answer in answers:
                await answer.read()
        await rig.admin_json("PATCH", "/admin/v1/pools/default/slo", json={"ttft_ms": 6000})
        yield Live(rig.data, rig.admin, upstream.url)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_every_command_for_a_running_proxy_succeeds(page: Page, live: Live) -> None:
    faults = [fault for command in shown(page) if (fault := await live.run(command))]
    assert faults == []
