"""The event stream: nothing missed, nothing twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from hypothesis import given
from hypothesis import strategies as st

from proxy.admin.events import MAX_STREAMS, Position
from tests.proxy.admin.operator import FakeOperator
from tests.proxy.admin.test_api import CHAT, ok, problem

EVENTS = "/admin/v1/events?every_s=0.2"


async def event(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    """Read one event."""
    fields: dict[str, Any] = {}
    while True:
        line = (await stream.content.readline()).decode().rstrip("\n")
        if not line:
            return fields
        name, _, value = line.partition(": ")
        fields[name] = json.loads(value) if name == "data" else value


async def next_decision(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    while (found := await event(stream))["event"] != "decision":
        pass
    return found


async def test_states_of_every_pool_keep_coming(api: TestClient) -> None:
    async with api.get(EVENTS) as stream:
        assert stream.content_type == "text/event-stream"
        for _ in range(2):
            state = await event(stream)
            assert state["event"] == "state"
            assert [pool["name"] for pool in state["data"]["pools"]] == ["chat", "embed"]
            assert {"slo", "setpoints", "quantiles", "attainment"} <= set(state["data"]["pools"][0])


async def test_decisions_come_as_they_are_made(api: TestClient) -> None:
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 2})
    async with api.get(EVENTS) as stream:
        await event(stream)
        await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 3})
        found = await next_decision(stream)
        assert found["data"]["id"] == 2, "what was decided before is not told again"
        assert found["data"]["new"]["max_batch_size"] == 3


async def test_a_client_that_comes_back_misses_nothing(api: TestClient) -> None:
    async with api.get(EVENTS) as stream:
        await event(stream)
        await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 2})
        last = (await next_decision(stream))["id"]
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 3})
    await ok(api, "PATCH", "/admin/v1/pools/embed/setpoints", json={"max_batch_size": 4})
    async with api.get(EVENTS, headers={"Last-Event-ID": last}) as stream:
        found = [(await next_decision(stream))["data"] for _ in range(2)]
    assert [(one["pool"], one["new"]["max_batch_size"]) for one in found] == [("chat", 3), ("embed", 4)]


async def test_it_misses_nothing_even_if_it_saw_no_decision_before(api: TestClient) -> None:
    async with api.get(EVENTS) as stream:
        last = (await event(stream))["id"]
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 2})
    async with api.get(EVENTS, headers={"Last-Event-ID": last}) as stream:
        assert (await next_decision(stream))["data"]["new"]["max_batch_size"] == 2


async def test_only_so_many_at_once(api: TestClient, operator: FakeOperator) -> None:
    streams = [await api.get(EVENTS) for _ in range(MAX_STREAMS)]
    await problem(api, "GET", EVENTS, 503)
    for stream in streams:
        stream.close()
    for _ in range(1000):
        async with api.get(EVENTS) as again:
            if again.status == 200:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("the places of clients that left are not given to others")


async def test_a_reader_that_takes_nothing_gives_its_place_to_others(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(self: web.StreamResponse, data: bytes) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr("proxy.admin.events.PATIENCE_S", 0.01)
        patched.setattr("aiohttp.web.StreamResponse.write", stuck)
        for _ in range(MAX_STREAMS + 1):
            async with api.get(EVENTS) as stream:
                assert stream.status == 200
                with pytest.raises(aiohttp.ClientError):
                    await stream.read()
    async with api.get(EVENTS) as stream:
        assert (await event(stream))["event"] == "state"


@pytest.mark.parametrize("every", ["0", "0.1", "61", "x"])
async def test_the_interval_has_a_range(api: TestClient, every: str) -> None:
    await problem(api, "GET", f"/admin/v1/events?every_s={every}", 422)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True), st.integers(0, 10**14), max_size=5
    )
)
def test_positions_can_be_read_back(position: dict[str, int]) -> None:
    assert Position.parse(str(Position(position))) == position


@given(st.text())
def test_whatever_a_client_sends_is_read_without_complaint(text: str) -> None:
    assert all(isinstance(number, int) for number in Position.parse(text).values())
