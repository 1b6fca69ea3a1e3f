"""The leader, with workers that answer what the test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.config.errors import ConfigError
from proxy.config.model import Config
from proxy.observe.metrics import Metrics
from proxy.upstream.keepers import Keepers, digest_of
from proxy.workers.leader import Leader
from proxy.workers.member import Member
from proxy.workers.protocol import Channel
from tests.support.virtual_clock import VirtualClock

DATA: dict[str, Any] = {"upstreams": ["http://a:1"], "slo": {"e2e_ms": 900}, "workers": 2}


class Puppet:
    """The worker's end of the line."""

    def __init__(self, member: Member, channel: Channel) -> None:
        self.member = member
        self.channel = channel

    async def hears(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind; others are skipped."""
        while True:
            message = await self.channel.receive()
            assert message is not None
            if message["type"] == kind:
                return message


class Crew:
    def __init__(self) -> None:
        self.next = Config.model_validate(DATA)
        self.leader = Leader(self.next, reread=lambda: self.next, clock=VirtualClock(100.0))
        self.puppets: list[Puppet] = []

    async def join(self, number: int) -> Puppet:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        member = self.leader.join(number, 1, await Channel.on(ours))
        puppet = Puppet(member, await Channel.on(theirs))
        self.puppets.append(puppet)
        return puppet


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    crew = Crew()
    yield crew
    for puppet in crew.puppets:
        puppet.channel.close()
    await crew.leader.stop()


def dump(requests: float) -> Any:
    metrics = Metrics(Config.model_validate(DATA).pools, process=False)
    metrics.families.requests.labels("default", "completions", "default", "ok", "200").add(requests)
    return metrics.dump()


def news(requests: float, **more: Any) -> dict[str, Any]:
    return {"type": "news", "pools": {}, "observations": [], "dropped": 0, "unready": [], "inside": 0,
            "dump": dump(requests), **more}  # fmt: skip


async def scraped(crew: Crew, answers: Callable[[Puppet], dict[str, Any] | None]) -> float:
    """Scrape while every puppet says what `answers` returns; return the counted requests."""

    async def play(puppet: Puppet) -> None:
        question = await puppet.hears("scrape")
        said = answers(puppet)
        if said is None:
            puppet.channel.close()
        else:
            puppet.channel.send(said)
            puppet.channel.send({"type": "answer", "id": question["id"]})

    alive = [puppet for puppet in crew.puppets if not puppet.member.gone.is_set()]
    (text, _), *_ = await asyncio.gather(crew.leader.exposition(""), *(play(puppet) for puppet in alive))
    rows = [line.split()[-1] for line in text.decode().splitlines() if line.startswith("trimtab_requests_total{")]
    return sum(map(float, rows))


async def test_a_scrape_is_the_sum_of_what_all_say_at_that_moment(crew: Crew) -> None:
    for number in range(2):
        (await crew.join(number)).channel.send(news(1))
    assert await scraped(crew, lambda puppet: news(3 + puppet.member.number)) == 7


async def test_what_a_dead_worker_counted_stays(crew: Crew) -> None:
    first, second = await crew.join(0), await crew.join(1)
    assert await scraped(crew, lambda puppet: news(5)) == 10
    first.channel.close()
    await first.member.gone.wait()
    assert await scraped(crew, lambda puppet: news(6)) == 11
    second.channel.close()
    await second.member.gone.wait()
    await crew.join(0)
    assert await scraped(crew, lambda puppet: news(1)) == 12


async def test_a_worker_that_dies_during_a_scrape_is_counted_once(crew: Crew) -> None:
    for number in range(2):
        await crew.join(number)
    assert await scraped(crew, lambda puppet: news(5)) == 10
    assert await scraped(crew, lambda puppet: news(5) if puppet.member.number else None) == 10


async def test_a_new_worker_is_told_everything(crew: Crew) -> None:
    pool = crew.leader.pools["default"]
    crew.leader.decided(pool, pool.controller.pin({"max_batch_size": 5}, 100.0, "admin:a"))
    welcome = await (await crew.join(1)).hears("welcome")
    part, orders = welcome["orders"]["default"]
    assert (part, orders["max_batch_size"], orders["slo"]["e2e_s"]) == (5, 5, 0.9)
    assert welcome["share"] == [1, 2]


async def test_who_keeps_what_is_told_to_the_other_workers_and_to_those_to_come(crew: Crew) -> None:
    first, second = await crew.join(0), await crew.join(1)
    keepers = Keepers(["http://a:1"])
    keepers.on_news = lambda: None
    keepers.made("resp_1", "http://a:1")
    rows = [list(row) for row in keepers.take()]
    strange = ["00" * 16, "http://z:1"]
    first.channel.send({"type": "kept", "kept": {"default": [*rows, strange], "gone": rows}})
    assert (await second.hears("kept"))["kept"]["default"][0] == rows[0]
    assert (await (await crew.join(2)).hears("welcome"))["kept"] == {"default": rows}
    digest = digest_of("resp_1").hex()
    second.channel.send({"type": "seek", "id": 7, "pool": "default", "ids": ["11" * 16, digest]})
    second.channel.send({"type": "seek", "id": 8, "pool": "gone", "ids": [digest]})
    answers = [await second.hears("sought") for _ in range(2)]
    assert [(answer["id"], answer["kept"]) for answer in answers] == [(7, {"default": rows}), (8, {})]


async def test_a_change_reaches_all_in_one_message_each(crew: Crew) -> None:
    puppets = [await crew.join(number) for number in range(2)]
    pool = crew.leader.pools["default"]
    crew.leader.decided(pool, pool.controller.pin({"max_batch_size": 5, "window_ms": 2}, 100.0, "admin:a"))
    told = []
    for puppet in puppets:
        while True:
            part, orders = (await puppet.hears("orders"))["orders"]["default"]
            if orders["window_ms"] == 2.0:
                told.append((part, orders["max_batch_size"], orders["generation"]))
                break
    assert told == [(3, 5, 1), (2, 5, 1)]


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_reload_changes_all_workers_or_none(crew: Crew, refuses: bool) -> None:
    puppets = [await crew.join(number) for number in range(2)]
    crew.next = Config.model_validate({**DATA, "slo": {"e2e_ms": 500}})
    reload = asyncio.ensure_future(crew.leader.reload())
    for puppet in puppets:
        question = await puppet.hears("prepare")
        error = "no such file" if refuses and puppet.member.number else None
        puppet.channel.send({"type": "answer", "id": question["id"], "error": error})
    if refuses:
        with pytest.raises(ConfigError, match="worker 1: no such file"):
            await reload
        for puppet in puppets:
            await puppet.hears("discard")
    else:
        assert (await reload).generation == 2
        for puppet in puppets:
            await puppet.hears("commit")
    slo = crew.leader.pools["default"].controller.slo
    assert (slo.e2e_s, crew.leader.config.pools[0].slo.e2e_ms) == ((0.9, 900) if refuses else (0.5, 500))


async def test_readiness_is_that_of_the_readiest_worker(crew: Crew) -> None:
    assert crew.leader.unready() == ["no worker is running"]
    first, second = await crew.join(0), await crew.join(1)
    assert crew.leader.unready() == ["starting"]
    await scraped(crew, lambda puppet: news(0, unready=[] if puppet is second else ["no upstream"]))
    assert crew.leader.unready() == []
    assert first.member.unready == ["no upstream"]
