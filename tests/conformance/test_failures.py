"""An answer that is a failure is one for everybody: client, routing, metrics, log. And nothing else is."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.observation import Result
from proxy.config.model import PoolConfig
from proxy.observe.metrics import Metrics
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, Answer, RawClient, request_bytes
from tests.support.sick import FORMATS, Ask, Script, ScriptedServer, answer, chunked, failures, well

PATH = "/v1/chat/completions"
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "least-work"},
    {"strategy": "round-robin"},
    {"strategy": "prefix"},
    {"strategy": "sticky", "header": "x-session-id"},
]
ONCE = {"max": 0}
CHAT_STREAM = FORMATS["openai chat stream"]
LONG = {"model": "m", "messages": [{"role": "user", "content": "the same beginning " * 200}]}


def failed(ask: Ask, got: Answer) -> bool:
    """Whether a client would say so."""
    return got.status != 200 or not got.complete or got.body != b"".join(ask.pieces)


CASES = [(ask, name, script) for ask in FORMATS.values() for name, script in failures(ask).items()]


@pytest.mark.parametrize("ask", FORMATS.values(), ids=lambda ask: ask.name)
async def test_a_failure_is_one_for_client_counts_and_routing(ask: Ask) -> None:
    for name, script in failures(ask).items():
        server = ScriptedServer(script, gap_s=0.02 if name in ("error later", "cut off") else 0.0)
        async with server as up, Stack(up.url, retries=ONCE) as stack, RawClient(stack.port) as client:
            got = await client.ask("POST", ask.path, body=ask.body)
            await stack.settled()
            (obs, _, code), endpoint = stack.counts.finished[0], stack.pool.group.endpoints[0]
            if name == "no end mark":
                assert obs.result is Result.OK, "this server has not shown that it marks its ends"
                continue
            assert obs.result is Result.FAILED, name
            assert code == got.status
            if name.startswith("status 4"):
                assert (got.status, got.body) == (int(name[7:]), ask.error), name
                continue
            assert endpoint.failure_rate > 0.0, name
            if name not in ("error later", "cut off"):
                assert got.status >= 500, name
                assert "error" in got.json or "message" in got.json, "in the caller's protocol"
            else:
                assert got.status == 200
                assert got.body.startswith(ask.pieces[0]), name


@pytest.mark.parametrize("ask", FORMATS.values(), ids=lambda ask: ask.name)
async def test_a_healthy_answer_is_relayed_as_it_is(ask: Ask) -> None:
    async with ScriptedServer(well(ask)) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(3):
            got = await client.ask("POST", ask.path, body=ask.body)
            assert not failed(ask, got)
        await stack.settled()
        assert {obs.result for obs, _, _ in stack.counts.finished} == {Result.OK}


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'data: {"error":{"message":"slow down","type":"rate_limit_error","code":429}}\n\n', 429),
        (b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n', 400),
        (b"event: error\ndata: engine died\n\n", 502),
    ],
)
async def test_an_error_before_anything_was_relayed_becomes_its_status(event: bytes, status: int) -> None:
    async with ScriptedServer(chunked([event])) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        got = await client.ask("POST", PATH, body=CHAT_STREAM.body)
        assert (got.status, got.header("content-type")) == (status, "application/json")
        assert got.header("x-trimtab-reason") == "error_in_answer"
        said = event.partition(b"data: ")[2].strip().decode()
        assert json.loads(said) == got.json if said.startswith("{") else said in got.json["error"]["message"]
        await stack.settled()


async def test_a_mistake_of_the_client_inside_a_200_is_held_against_nobody_and_not_repeated() -> None:
    script = chunked([b'data: {"error":{"message":"too long","code":400}}\n\n'])
    async with ScriptedServer(script) as one, ScriptedServer(script) as two:
        async with Stack(one.url, two.url) as stack, RawClient(stack.port) as client:
            for asked in range(1, 5):
                assert (await client.ask("POST", PATH, body=CHAT_STREAM.body)).status == 400
                assert one.asked + two.asked == asked
            assert [each.failure_rate for each in stack.pool.group.endpoints] == [0.0, 0.0]
            await stack.settled()


async def test_a_stream_without_its_mark_fails_at_a_server_that_has_shown_it() -> None:
    pieces = CHAT_STREAM.pieces
    async with ScriptedServer(well(CHAT_STREAM), gap_s=0.002) as up:
        async with Stack(up.url) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", PATH, body=CHAT_STREAM.body)).complete
            up.script = chunked(pieces[:2])
            got = await client.ask("POST", PATH, body=CHAT_STREAM.body)
            assert (got.status, got.body, got.complete) == (200, b"".join(pieces[:2]), True), "what came, as it came"
            await stack.settled()
            assert [obs.result for obs, _, _ in stack.counts.finished] == [Result.OK, Result.FAILED]


@pytest.mark.parametrize("closes", [False, True])
async def test_servers_that_never_send_a_mark_do_not_fail(closes: bool) -> None:
    for pieces in (CHAT_STREAM.pieces[:-1], [b"data: one\n\n", b"data: two\n\n"], [b"data: no blank line\n"]):
        script = chunked(pieces)
        if closes:
            script = Script(
                [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n", *pieces], True
            )
        async with ScriptedServer(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
            for _ in range(3):
                got = await client.ask("POST", PATH, body=CHAT_STREAM.body)
                assert (got.status, got.body, got.complete) == (200, b"".join(pieces), True)
            await stack.settled()
            assert {obs.result for obs, _, _ in stack.counts.finished} == {Result.OK}


async def test_a_head_that_comes_early_does_not_wait_for_its_first_event() -> None:
    script = chunked(CHAT_STREAM.pieces)
    async with ScriptedServer(script, gap_s=5.0) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, body=CHAT_STREAM.body))
        status, _, _ = await client.head()
        assert (status, up.asked, up.written) == (200, 1, 1), "of the answer only its head had been written"
        assert stack.lifecycle.inside == 1


# -- beside a good one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", STRATEGIES, ids=lambda each: each["strategy"])
@pytest.mark.parametrize(
    "name", ["status 401", "status 404", "status 500", "error in 200", "half a document", "closes unheard"]
)
async def test_failing_fast_attracts_no_traffic(routing: dict[str, Any], name: str) -> None:
    ask = FORMATS["openai chat"]
    async with ScriptedServer(failures(ask)[name]) as sick, ScriptedServer(well(ask), delay_s=0.002) as good:
        async with Stack(sick.url, good.url, routing=routing) as stack, RawClient(stack.port) as client:
            outcomes = []
            for index in range(60):
                session = {"X-Session-Id": str(index % 7)}
                got = await client.ask("POST", ask.path, session, body=LONG)
                outcomes.append(failed(ask, got))
            assert sum(outcomes[10:]) <= 1, outcomes
            assert sick.asked <= 12
            await stack.settled()


@pytest.mark.parametrize("routing", STRATEGIES, ids=lambda each: each["strategy"])
@pytest.mark.parametrize("ask", [each for each in FORMATS.values() if each.streamed], ids=lambda ask: ask.name)
@pytest.mark.parametrize("name", ["cut off", "error later"])
async def test_beginning_well_does_not_make_up_for_ending_badly(ask: Ask, routing: dict[str, Any], name: str) -> None:
    """What has been relayed cannot be tried again, so two streams are all that it may cost."""
    async with ScriptedServer(failures(ask)[name], gap_s=0.01) as sick, ScriptedServer(well(ask)) as good:
        async with Stack(sick.url, good.url, routing=routing) as stack:
            fates = []
            for index in range(30):
                async with RawClient(stack.port) as client:
                    got = await client.ask("POST", ask.path, {"X-Session-Id": str(index)}, body=ask.body)
                fates.append(failed(ask, got))
            for look in stack.pool.group.repute._looks.values():
                assert look.due > look.asked_at, "a look that ended badly is not followed by another one at once"
            assert sum(fates) <= 2, fates
            assert sick.asked <= 3
            await stack.settled()
            results = [obs.result for obs, _, _ in stack.counts.finished]
            assert results.count(Result.FAILED) == sum(fates), "and each is counted as what it was"


async def test_poison_that_kills_whoever_reads_it_starves_nobody() -> None:
    async with MockUpstream() as one, MockUpstream() as two, MockUpstream() as three:
        ups = [one, two, three]
        urls = [up.url for up in ups]
        async with Stack(*urls, routing="round-robin", retries=ONCE) as stack, RawClient(stack.port) as client:
            for _ in range(40):
                for up in ups:
                    up.default = Behaviour(reset_before_head=True)
                assert (await client.ask("POST", PATH, body=CHAT)).status == 502
                for up in ups:
                    up.default = Behaviour()
                for _ in range(2):
                    assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            honest = [sum(seen.status == 200 for seen in up.seen) for up in ups]
            assert sum(count >= 8 for count in honest) >= 2, honest
            await stack.settled()


async def test_a_sick_one_that_is_well_again_is_asked_again() -> None:
    ask = FORMATS["openai chat"]
    async with ScriptedServer(answer(ask.error)) as sick, ScriptedServer(well(ask)) as good:
        async with Stack(sick.url, good.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            for _ in range(20):
                await client.ask("POST", ask.path, body=CHAT)
            sick.script, before = well(ask), sick.asked
            for look in stack.pool.group.repute._looks.values():
                look.due = 0.0
            for _ in range(60):
                assert not failed(ask, await client.ask("POST", ask.path, body=CHAT))
            assert sick.asked - before >= 20, "it has its share again"
            await stack.settled()


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_what_all_turn_away_is_the_clients_mistake(status: int) -> None:
    ask = FORMATS["openai chat"]
    script = answer(ask.error, status=status)
    async with ScriptedServer(script) as one, ScriptedServer(script) as two:
        async with Stack(one.url, two.url) as stack, RawClient(stack.port) as client:
            for _ in range(40):
                got = await client.ask("POST", ask.path, body=CHAT)
                assert (got.status, got.body) == (status, ask.error), "untouched"
            stats = stack.pool.stats()["upstreams"]
            assert [(each["state"], each["failure_rate"]) for each in stats] == [("up", 0.0)] * 2
            assert len(stack.pool.group.repute) == 0
            await stack.settled()


async def test_a_client_with_a_wrong_key_moves_nobodys_traffic_but_its_own() -> None:
    """One upstream checks keys, the other one lets everybody in."""
    async with MockUpstream() as strict, MockUpstream() as lax:
        async with Stack(strict.url, lax.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            wrong, right = {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer right"}
            for index in range(40):
                strict.default = Behaviour(status=401)
                headers = {**wrong, "X-Api-Key": str(index)} if index % 2 else wrong
                got = await client.ask("POST", PATH, headers, body=CHAT)
                assert got.status == 200 or (index > 4 and got.status == 401), "second opinions are so many a second"
                strict.default = Behaviour()
                assert (await client.ask("POST", PATH, right, body=CHAT)).status == 200
            honest = [
                seen
                for up in (strict, lax)
                for seen in up.seen
                if seen.header("authorization") == right["Authorization"]
            ]
            at_strict = [seen for seen in strict.seen if seen.header("authorization") == right["Authorization"]]
            assert len(honest) == 40
            assert len(at_strict) >= 15, "half of the honest ones still go there"
            assert stack.pool.group.endpoints[0].failure_rate == 0.0
            await stack.settled()


async def test_a_client_with_invented_models_fills_no_memory_and_starves_nobody() -> None:
    async with MockUpstream() as knows, MockUpstream() as any_model:
        async with Stack(knows.url, any_model.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            for index in range(60):
                knows.default = Behaviour(status=404)
                await client.ask("POST", PATH, body={**CHAT, "model": f"invented-{index}"})
                knows.default = Behaviour()
                for _ in range(1 + index % 2):
                    assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            honest = [seen for seen in knows.seen if seen.json["model"] == CHAT["model"]]
            assert len(honest) >= 20
            assert len(stack.pool.group.repute) <= 60
            await stack.settled()


async def test_poison_that_fails_everywhere_starves_nobody() -> None:
    """A client whose every request is a 500 at whoever gets it."""
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            for _ in range(40):
                for up in (one, two):
                    up.default = Behaviour(status=500)
                await client.ask("POST", PATH, body=CHAT)
                for up in (one, two):
                    up.default = Behaviour()
                assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            honest = [sum(seen.status == 200 for seen in up.seen) for up in (one, two)]
            assert min(honest) >= 8, honest
            await stack.settled()


# -- counted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (answer(b'{"error":{"message":"x"}}', status=500), "failed"),
        (answer(b'{"error":{"message":"x","type":"server_error"}}'), "failed"),
        (answer(b'{"error":{"message":"x"}}', status=503), "overloaded"),
        (answer(b'{"error":{"message":"x","code":429}}'), "overloaded"),
        (answer(b'{"error":{"message":"x"}}', status=404), "wrong_model"),
        (answer(b'{"error":{"message":"x"}}', status=401), "unauthorised"),
        (answer(b'{"error":{"message":"x"}}', status=403), "unauthorised"),
        (answer(b'{"error":{"message":"x"}}', status=400), "rejected"),
        (answer(b'{"error":{"message":"x"}}', status=415), "rejected"),
        (Script([], True), "failed"),
        (chunked([*CHAT_STREAM.pieces[:2], CHAT_STREAM.event]), "failed"),
        (chunked(CHAT_STREAM.pieces[:2], ends=False), "failed"),
        (answer(b"{", length=9), "failed"),
    ],
)
async def test_how_calls_end_is_told_apart(script: Script, outcome: str) -> None:
    async with ScriptedServer(script) as up, Stack(up.url, retries=ONCE) as stack, RawClient(stack.port) as client:
        await client.ask("POST", PATH, body=CHAT_STREAM.body)
        await stack.settled()
        metrics = Metrics([PoolConfig.model_validate({"upstreams": [up.url]})], process=False)
        for obs, route, code in stack.counts.finished:
            metrics.request_finished(obs, route, code)
        text = metrics.render()[0].decode()
        ended = [line for line in text.splitlines() if line.startswith("trimtab_upstream_requests_total")]
        assert [line for line in ended if not line.endswith(" 0.0")] == [
            f'trimtab_upstream_requests_total{{outcome="{outcome}",pool="default",upstream="{up.url}"}} 1.0'
        ]


async def test_a_failure_that_another_one_made_good_is_counted_where_it_happened() -> None:
    ask = FORMATS["openai embeddings"]
    async with ScriptedServer(answer(ask.error)) as sick, ScriptedServer(well(ask)) as good:
        async with Stack(sick.url, good.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            for _ in range(2):
                assert not failed(ask, await client.ask("POST", ask.path, body=ask.body))
            await stack.settled()
            assert stack.counts.vain == [(sick.url, 500)]
            assert stack.counts.retries == 1
