"""The examples of docs/extending.md run as they stand, where the page says they run."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import controller.laws.registry as law_registry
import policies.registry as policy_registry
import proxy.wire.registry as wire_registry
from controller.laws import LAWS
from controller.laws.base import Law
from controller.simulator.cli import main as simulate
from policies.base import Policy
from tests.docs.pages import ROOT, Page
from tests.support.proxy_stack import Stack

PAGE = Page(ROOT / "docs" / "extending.md")
POLICY, POLICY_USE, LAW, WIRE = [block.text for block in PAGE.blocks() if block.language == "python"]


def run(text: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example", **(names or {})}
    exec(compile(text, "docs/extending.md", "exec"), found)
    return found


def test_the_policy_orders_as_it_says_once_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(POLICY)

    class Published(EntryPoint):
        def load(self) -> Any:
            return names["HeavyFirst"]

    entry = Published("heavy-first", "my_package.policies:HeavyFirst", policy_registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(policy_registry, "entry_points", lambda **_: [entry])
    assert isinstance(run(POLICY_USE, names)["policy"], Policy)


def test_the_law_holds_its_aim_in_the_simulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    law = run(LAW)["Proportional"]
    monkeypatch.setitem(LAWS, "proportional", law)  # type: ignore[call-overload]
    assert isinstance(law_registry.make_law("proportional", {"aim": 0.7}), Law)
    words = ["--rate", "3", "--duration", "120", "--law", "proportional,fixed", "--max-size", "32", "--size", "1"]
    assert simulate(words) == 0
    assert "proportional" in capsys.readouterr().out


async def test_the_wire_format_merges_and_deals_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = run(WIRE)["Scores"]()
    monkeypatch.setitem(wire_registry._FORMATS, wire.name, wire)
    monkeypatch.setattr(wire_registry, "_DETECTED", (*wire_registry._DETECTED, wire))
    asked: list[list[str]] = []
    gate = asyncio.Event()

    async def score(request: web.Request) -> web.Response:
        texts = orjson.loads(await request.read())["texts"]
        asked.append(texts)
        await gate.wait()
        return web.json_response({"scores": [len(text) for text in texts]})

    app = web.Application()
    app.router.add_post("/judge", score)
    async with (
        TestServer(app) as server,
        Stack(
            str(server.make_url("")).rstrip("/"),
            dispatch="merge",
            depth=1,
            setpoints={"max_batch_size": {"initial": 8, "max": 8}, "window_ms": 0},
        ) as stack,
        aiohttp.ClientSession() as http,
    ):

        async def one(*texts: str) -> Any:
            async with http.post(f"{stack.url}/judge", json={"texts": texts}) as answer:
                return answer.status, await answer.json()

        first = asyncio.create_task(one("a", "bb"))
        rest = [asyncio.create_task(one(text)) for text in ("ccc", "dddd", "eeeee")]
        async with asyncio.timeout(10):
            while len(stack.pool.queue) < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        gate.set()
        answers = await asyncio.gather(first, *rest)
        assert answers == [(200, {"scores": scores}) for scores in ([1, 2], [3], [4], [5])]
        assert [len(texts) for texts in asked] == [2, 3]
