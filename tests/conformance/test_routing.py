"""Who of several upstreams gets a request, over real sockets."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HEALTH = {"interval_ms": 3_600_000, "eject_after": 1, "eject_ms": 100, "path": "/health", "unhealthy_after": 1}


def asked(*ups: MockUpstream) -> list[int]:
    return [sum(seen.method == "POST" for seen in up.seen) for up in ups]


async def test_round_robin_takes_turns_by_weight() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        upstreams = [{"url": one.url, "weight": 1}, {"url": two.url, "weight": 3}]
        async with Stack(upstreams=upstreams, routing="round-robin") as stack, RawClient(stack.port) as client:
            for _ in range(8):
                await client.ask("POST", PATH, body=CHAT)
            assert asked(one, two) == [2, 6]


async def test_a_session_stays_and_moves_only_while_its_upstream_is_away() -> None:
    routing = {"strategy": "sticky", "header": "x-session-id", "slow_start_ms": 0}
    async with MockUpstream() as one, MockUpstream() as two, MockUpstream() as three:
        ups = [one, two, three]
        config: dict[str, Any] = {"routing": routing, "health": HEALTH, "retries": {"on": ["connect", "broken"]}}
        async with Stack(*[up.url for up in ups], **config) as stack:
            async with RawClient(stack.port) as client:

                async def homes() -> dict[str, int]:
                    found = {}
                    for session in map(str, range(12)):
                        before = asked(*ups)
                        answer = await client.ask("POST", PATH, {"X-Session-Id": session}, body=CHAT)
                        assert answer.status == 200
                        after = asked(*ups)
                        grown = [index for index in range(3) if after[index] > before[index]]
                        found[session] = next(index for index in grown if ups[index].default == Behaviour())
                    return found

                first = await homes()
                assert await homes() == first
                gone = first["0"]
                ups[gone].default = Behaviour(reset_before_head=True)
                during = await homes()
                assert all(during[session] == home for session, home in first.items() if home != gone)
                ups[gone].default = Behaviour()
                await stack.pool._prober.round()
                assert await homes() == first
            await stack.settled()


async def test_no_session_leaves_its_upstream_to_look_at_one_that_breaks_off() -> None:
    routing = {"strategy": "sticky", "header": "x-session-id"}
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing=routing) as stack, RawClient(stack.port) as client:

            async def at(up: MockUpstream, session: str) -> bool:
                before = asked(up)
                await client.ask("POST", PATH, {"X-Session-Id": session}, body=CHAT)
                return asked(up) != before

            homes = {str(session): await at(one, str(session)) for session in range(24)}
            away = [session for session, there in homes.items() if there]
            one.default = Behaviour(status=500)
            for _ in range(10):
                await at(one, away[0])
            assert not await at(one, away[0]), "it is passed over"
            one.default = Behaviour()
            for look in stack.pool.group.repute._looks.values():
                look.due = 0.0
            for session, there in homes.items():
                assert there or not await at(one, session), "who lives elsewhere stays there"
            for _ in range(10):
                assert await at(one, away[0]), "who lives there finds out that it is well"
            await stack.settled()


async def test_a_conversation_goes_back_to_where_its_prefix_is_cached() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing="prefix") as stack, RawClient(stack.port) as client:
            homes = []
            for talk in "abcd":
                messages = [{"role": "user", "content": talk * 2000}]
                turns = []
                for turn in range(3):
                    before = asked(one, two)
                    body = {"model": "m", "temperature": turn, "messages": messages}
                    assert (await client.ask("POST", PATH, body=body)).status == 200
                    turns.append([b - a for a, b in zip(before, asked(one, two), strict=True)])
                    messages = [*messages, {"role": "assistant", "content": f"answer {turn} " * 100}]
                assert turns[0] == turns[1] == turns[2]
                homes.append(tuple(turns[0]))
            assert len(set(homes)) == 2, "different conversations are spread"


async def test_a_hot_prefix_is_shared_when_its_upstream_is_busy() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing="prefix") as stack:
            body = {"model": "m", "messages": [{"role": "user", "content": "hot " * 500}]}

            async def ask() -> int:
                async with RawClient(stack.port) as client:
                    return (await client.ask("POST", PATH, body=body, mock={"gate": "go"})).status

            tasks = [asyncio.create_task(ask()) for _ in range(20)]
            async with asyncio.timeout(5):
                while one.inflight + two.inflight < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert min(one.inflight, two.inflight) >= 4
            for up in (one, two):
                up.open("go")
            assert await asyncio.gather(*tasks) == [200] * 20
            await stack.settled()


async def test_merged_calls_follow_the_header_as_well() -> None:
    routing = {"strategy": "sticky", "header": "x-session-id"}
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing=routing, dispatch="merge") as stack:
            async with RawClient(stack.port) as client:
                for session in "abcdef":
                    before = asked(one, two)
                    for _ in range(3):
                        body = {"model": "m", "input": "text"}
                        await client.ask("POST", "/v1/embeddings", {"X-Session-Id": session}, body=body)
                    grown = [b - a for a, b in zip(before, asked(one, two), strict=True)]
                    assert sorted(grown) == [0, 3]


async def test_a_name_that_moves_is_followed_and_one_with_many_addresses_is_spread() -> None:
    """Names are looked up for every new connection, and no connection lives for ever."""
    one, two = MockUpstream(), MockUpstream()
    await one.start()
    await two.start(one.port, "127.0.0.2")
    answers: list[list[str]] = [["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "models.test"
        return answers[-1]

    try:
        config: dict[str, Any] = {"connections": {"max_age_ms": 1}}
        async with Stack(f"http://models.test:{one.port}", **config) as stack, RawClient(stack.port) as client:
            stack.pool.group.endpoints[0].connections.resolve = resolve
            for _ in range(3):
                assert (await client.ask("POST", PATH, body=CHAT, mock={"delay": 0.003})).status == 200
            assert asked(one, two) == [3, 0]
            assert one.seen[0].header("host") == f"models.test:{one.port}"
            answers.append(["127.0.0.2"])
            for _ in range(3):
                assert (await client.ask("POST", PATH, body=CHAT, mock={"delay": 0.003})).status == 200
            assert asked(one, two) == [3, 3]
            answers.append(["127.0.0.1", "127.0.0.2"])
            for _ in range(40):
                await client.ask("POST", PATH, body=CHAT, mock={"delay": 0.003})
            assert min(asked(one, two)) > 5
            answers.append(["127.0.0.3", "127.0.0.2"])
            for _ in range(4):
                assert (await client.ask("POST", PATH, body=CHAT, mock={"delay": 0.003})).status == 200
            await stack.settled()
    finally:
        await one.stop()
        await two.stop()


async def test_a_name_that_cannot_be_found_is_502() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError(f"{host} is not known")

    config = {"queue": {"upstream_wait_ms": 0}}
    async with Stack("http://models.test:1", **config) as stack, RawClient(stack.port) as client:
        stack.pool.group.endpoints[0].connections.resolve = resolve
        answer = await client.ask("POST", PATH, body=CHAT)
        assert (answer.status, answer.header("x-trimtab-reason")) == (502, "upstream_error")
        await stack.settled()
