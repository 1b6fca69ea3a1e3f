"""What an upstream keeps is known to it alone: follow-ups go there, over real sockets."""

# ruff: noqa: SIM117 - the upstreams and the proxy in front of them read better one inside the other

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.cli.sockets import bind
from proxy.clock import LoopClock
from proxy.config.model import Config, PoolConfig
from proxy.config.rules import controller_for
from proxy.dispatch.pool import Pool
from proxy.observe.hooks import Hooks
from proxy.observe.metrics import Metrics
from proxy.plane import DataPlane
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient, request_bytes
from tests.support.stateful_upstream import StatefulUpstream

RESPONSES = "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "input": "hi"}
STRATEGIES: list[Any] = ["least-work", "round-robin", "prefix", {"strategy": "sticky", "header": "x-session-id"}]
KINDS = {
    "responses": ASK,
    "conversations": {},
    "batches": {},
    "containers": {"name": "c"},
    "threads": {},
    "assistants": {"model": "m"},
    "vector_stores": {"name": "v"},
    "uploads": {"bytes": 1},
    "messages/batches": {"requests": []},
    "fine_tuning/jobs": {"model": "m"},
    "videos": {"prompt": "a cat"},
}
SUB = {"responses": "/input_items", "conversations": "/items", "messages/batches": "/results", "threads": "/messages"}


def minted(answer: Answer) -> str:
    assert answer.status == 200, answer
    id = json.loads(answer.body)["id"]
    assert isinstance(id, str)
    return id


def minted_by_stream(answer: Answer) -> str:
    assert answer.status == 200, answer
    data = answer.body.split(b"data: ", 1)[1].split(b"\n", 1)[0]
    id = json.loads(data)["response"]["id"]
    assert isinstance(id, str)
    return id


def remembered(stack: Stack) -> int:
    assert stack.pool.keepers is not None
    return len(stack.pool.keepers)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_follow_up_goes_to_who_made_the_response(strategy: Any, stream: bool) -> None:
    config: dict[str, Any] = {"routing": strategy, "retries": {"on": []}}
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, **config) as stack, RawClient(stack.port) as client:
            read = minted_by_stream if stream else minted
            ids = []
            for turn in range(8):
                session = {"X-Session-Id": f"s{turn}"}
                ids.append(read(await client.ask("POST", RESPONSES, session, body={**ASK, "stream": stream})))
            assert one.kept, "both make some"
            assert two.kept
            for turn in range(30):
                body = {**ASK, "stream": stream, "previous_response_id": ids[-1 - turn % 8]}
                answer = await client.ask("POST", RESPONSES, {"X-Session-Id": f"other{turn}"}, body=body)
                ids.append(read(answer))
            for id in ids:
                for method, tail in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                    answer = await client.ask(method, f"{RESPONSES}/{id}{tail}")
                    assert answer.status == 200, (method, tail, answer)
            assert set(stack.counts.follow_ups) == {"kept"}
            await stack.settled()


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_thing_stays_where_it_was_made(kind: str) -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                ids = [minted(await client.ask("POST", f"/v1/{kind}", body=KINDS[kind])) for _ in range(6)]
                assert one.kept
                assert two.kept
                for _ in range(5):
                    for id in ids:
                        assert minted(await client.ask("GET", f"/v1/{kind}/{id}{SUB.get(kind, '')}")) == id
                await stack.settled()


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("files", "/v1/batches", {"input_file_id": "ID", "endpoint": "/v1/responses"}),
        ("files", "/v1/responses", {**ASK, "input": [{"content": [{"type": "input_file", "file_id": "ID"}]}]}),
        ("files", "/v1/vector_stores", {"name": "v", "file_ids": ["ID"]}),
        ("files", "/v1/chat/completions",
         {"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "ID"}}]}]}),
        ("files", "/v1/messages",
         {"model": "m", "messages": [{"role": "user", "content": [{"source": {"type": "file", "file_id": "ID"}}]}]}),
        ("vector_stores", "/v1/responses", {**ASK, "tools": [{"type": "file_search", "vector_store_ids": ["ID"]}]}),
        ("containers", "/v1/responses", {**ASK, "tools": [{"type": "code_interpreter", "container": "ID"}]}),
        ("conversations", "/v1/responses", {**ASK, "conversation": "ID"}),
        ("conversations", "/v1/responses", {**ASK, "conversation": {"id": "ID"}}),
        ("assistants", "/v1/threads/runs", {"assistant_id": "ID"}),
        ("responses", "/v1/responses", {**ASK, "previous_response_id": "ID", "input": "x" * 2_000_000}),
        ("conversations", "/v1/responses", {"input": "x" * 2_000_000, "conversation": {"id": "ID"}}),
    ],
)  # fmt: skip
async def test_what_a_body_refers_to_decides_wherever_it_stands(kind: str, path: str, body: dict[str, Any]) -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                ids = [minted(await client.ask("POST", f"/v1/{kind}", body=KINDS.get(kind, {}))) for _ in range(4)]
                for id in [*ids, *ids[1:], ids[0]]:
                    text = json.dumps(body).replace('"ID"', json.dumps(id))
                    answer = await client.ask("POST", path, body=text)
                    assert answer.status == 200, answer
                await stack.settled()


async def test_files_are_uploaded_and_found_again() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                kind = {"Content-Type": "multipart/form-data; boundary=b"}
                form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhi\r\n--b--\r\n'
                ids = [minted(await client.ask("POST", "/v1/files", kind, body=form)) for _ in range(4)]
                batches = []
                for id in [*ids, *reversed(ids)]:
                    assert (await client.ask("GET", f"/v1/files/{id}/content")).status == 200
                    batches.append(minted(await client.ask("POST", "/v1/batches", body={"input_file_id": id})))
                for id in batches:
                    batch = json.loads((await client.ask("GET", f"/v1/batches/{id}")).body)
                    for _ in range(2):
                        answer = await client.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
                        assert answer.status == 200, "its results are where it ran"
                await stack.settled()


async def test_a_body_that_comes_after_its_head_is_read_for_ids() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                ids = [minted(await client.ask("POST", "/v1/files")) for _ in range(4)]
                for id in [*ids, *reversed(ids)]:
                    head, _, body = request_bytes("POST", "/v1/batches", body={"input_file_id": id}).partition(
                        b"\r\n\r\n"
                    )
                    client.send(head + b"\r\n\r\n")
                    await asyncio.sleep(0.01)
                    client.send(body[:5])
                    await asyncio.sleep(0.01)
                    client.send(body[5:])
                    assert (await client.answer()).status == 200
                await stack.settled()


async def test_an_answer_is_read_however_it_comes() -> None:
    """Compressed, in pieces, larger than what is read of it, and under any prefix."""
    for upstreams, headers, more, prefix in (
        ((StatefulUpstream(compress=True), StatefulUpstream(compress=True)), {"Accept-Encoding": "gzip"}, {}, ""),
        ((StatefulUpstream(), StatefulUpstream()), {}, {"large": True}, ""),
        ((StatefulUpstream(), StatefulUpstream()), {}, {}, "/openai"),
        ((StatefulUpstream(late_s=0.6), StatefulUpstream(late_s=0.6)), {}, {"stream": True}, ""),
    ):
        one, two = upstreams
        async with one, two, Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                for _ in range(2):
                    await client.ask("POST", prefix + RESPONSES, headers, body={**ASK, **more})
                assert one.kept
                assert two.kept
                for id in [*one.kept, *two.kept, *one.kept]:
                    assert (await client.ask("GET", f"{prefix}{RESPONSES}/{id}")).status == 200
                await stack.settled()


async def test_a_response_can_be_cancelled_while_it_streams() -> None:
    async with StatefulUpstream(pause_s=30.0) as one, StatefulUpstream(pause_s=30.0) as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with (
                RawClient(stack.port) as first,
                RawClient(stack.port) as second,
                RawClient(stack.port) as other,
            ):
                for client, upstream in ((first, one), (second, two)):
                    client.send(request_bytes("POST", RESPONSES, body={**ASK, "stream": True}))
                    await client.head()
                    await client.reader.readuntil(b"\n\n")
                    assert len(upstream.kept) == 1
                for _ in range(3):
                    for id in (*one.kept, *two.kept):
                        assert (await other.ask("POST", f"{RESPONSES}/{id}/cancel")).status == 200


async def test_what_is_not_stored_and_what_nobody_knows_go_as_any_request_does() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            id = minted(await client.ask("POST", RESPONSES, body={**ASK, "store": False}))
            minted(await client.ask("POST", "/v1/chat/completions", body={"model": "m", "messages": []}))
            assert remembered(stack) == 0
            for path in (f"{RESPONSES}/{id}", f"{RESPONSES}/resp_never1", "/v1/files/file-none1/content"):
                answer = await client.ask("GET", path)
                assert answer.status == 404
                assert b"is not known" in answer.body
                assert f"GET {path}" in one.asked
                assert f"GET {path}" in two.asked, "a second opinion, as for any 404"
            answer = await client.ask("POST", RESPONSES, body={**ASK, "previous_response_id": "resp_never1"})
            assert answer.status == 404
            assert stack.counts.follow_ups == ["unknown"] * 4
            assert remembered(stack) == 0, "invented ids are not remembered"
            await stack.settled()


async def test_who_was_seen_to_serve_an_id_is_asked_from_then_on() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            two.kept.update({"resp_0123", "resp_4567"})
            for id in ("resp_0123", "resp_4567"):
                assert (await client.ask("GET", f"{RESPONSES}/{id}")).status == 200
            one.asked.clear()
            for _ in range(3):
                for id in ("resp_0123", "resp_4567"):
                    assert (await client.ask("GET", f"{RESPONSES}/{id}")).status == 200
            assert one.asked == []
            two.kept.add("resp_89")
            body = {**ASK, "previous_response_id": "resp_89"}
            for _ in range(3):
                assert (await client.ask("POST", RESPONSES, body=body)).status == 200
            assert len(one.asked) <= 1
            await stack.settled()


async def test_words_of_the_protocol_are_no_ids() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            for path in ("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/files/report"):
                for _ in range(4):
                    assert (await client.ask("POST" if "resp" in path else "GET", path, body=b"{}")).status == 200
            assert len(one.seen) == len(two.seen) == 6
            await stack.settled()


async def test_a_caller_cannot_move_what_another_one_keeps() -> None:
    """Neither what an answer repeats of a request nor what a file holds says who keeps something."""
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin", retries={"on": []}) as stack:
            async with RawClient(stack.port) as client:
                victims = [minted(await client.ask("POST", RESPONSES, body=ASK)) for _ in range(4)]
                for victim in victims:
                    for _ in range(2):
                        metadata = {"id": victim, "file_id": victim, "previous_response_id": victim}
                        await client.ask("POST", RESPONSES, body={**ASK, "metadata": metadata})
                file = minted(await client.ask("POST", "/v1/files"))
                assert (await client.ask("GET", f"/v1/files/{file}/content")).status == 200
                assert stack.pool.keepers is not None
                assert stack.pool.keepers.find("file-of-a-caller-1") is None
                assert stack.pool.keepers.find("resp_of-a-caller-1") is None
                for victim in victims:
                    assert (await client.ask("GET", f"{RESPONSES}/{victim}")).status == 200
                await stack.settled()


# -- away ----------------------------------------------------------------------------------------------------------


async def made_on(upstream: StatefulUpstream, client: RawClient) -> str:
    """Have something made until `upstream` has made some of it, and return its id."""
    while not upstream.kept:
        await client.ask("POST", RESPONSES, body=ASK)
    return next(iter(upstream.kept))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/ID", b""),
        ("POST", "/v1/responses/ID/cancel", b""),
        ("DELETE", "/v1/responses/ID", b""),
        ("POST", "/v1/responses", b'{"model":"m","input":"hi","previous_response_id":"ID"}'),
        ("POST", "/v1/responses", b'{"model":"m","input":"hi","stream":true,"previous_response_id":"ID"}'),
    ],
)
@pytest.mark.parametrize("wait_ms", [0, 300])
async def test_when_who_keeps_it_is_away_the_caller_is_told_so_and_nobody_else_is_asked(
    method: str, path: str, body: bytes, wait_ms: int
) -> None:
    config: dict[str, Any] = {"queue": {"upstream_wait_ms": wait_ms}, "health": {"interval_ms": 3_600_000}}
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, **config) as stack, RawClient(stack.port) as client:
            id = await made_on(one, client)
            await one.stop()
            before = len(two.asked)
            for _ in range(3):
                named = body.replace(b"ID", id.encode())
                answer = await client.ask(method, path.replace("ID", id), body=named)
                assert (answer.status, answer.header("x-trimtab-reason")) == (503, "keeper_away"), answer
                assert int(answer.header("retry-after") or 0) >= 1
                assert json.loads(answer.body)["error"]["code"] == "keeper_away"
            assert len(two.asked) == before, "nobody else knows it"
            assert stack.counts.follow_ups[-3:] == ["away"] * 3
            assert stack.counts.sheds[-1] == ("default", "keeper_away")
            assert (await client.ask("POST", RESPONSES, body=ASK)).status == 200, "others are served"
            await stack.settled()


async def test_a_follow_up_waits_for_who_comes_back() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url) as stack, RawClient(stack.port) as client, RawClient(stack.port) as more:
            id = await made_on(one, client)
            await one.stop()
            before = len(two.asked)
            asking = [
                asyncio.create_task(client.ask("GET", f"{RESPONSES}/{id}", timeout=20.0)),
                asyncio.create_task(
                    more.ask("POST", RESPONSES, body={**ASK, "previous_response_id": id}, timeout=20.0)
                ),
            ]
            async with asyncio.timeout(10):
                while len(stack.pool.holding._for_one) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await one.start()
            assert [answer.status for answer in await asyncio.gather(*asking)] == [200, 200]
            assert len(two.asked) == before
            assert stack.counts.follow_ups[-2:] == ["kept", "kept"]
            await stack.settled()


async def test_a_keeper_that_an_operator_drains_is_not_waited_for() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url) as stack, RawClient(stack.port) as client:
            id = await made_on(one, client)
            before = len(two.asked)
            stack.pool.take_out(one.url, True, 0.0, "admin:a")
            answer = await client.ask("GET", f"{RESPONSES}/{id}")
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "keeper_away")
            assert len(two.asked) == before
            stack.pool.take_out(one.url, False, 0.0, "admin:a")
            assert (await client.ask("GET", f"{RESPONSES}/{id}")).status == 200
            await stack.settled()


async def test_only_so_many_wait_for_one_upstream() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url, queue={"max_requests": 1}) as stack:
            async with RawClient(stack.port) as client, RawClient(stack.port) as more:
                id = await made_on(one, client)
                await one.stop()
                client.send(request_bytes("GET", f"{RESPONSES}/{id}"))
                async with asyncio.timeout(10):
                    while not len(stack.pool.holding._for_one):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                answer = await more.ask("GET", f"{RESPONSES}/{id}")
                assert (answer.status, answer.header("x-trimtab-reason")) == (503, "queue_full")
                assert (await more.ask("POST", RESPONSES, body=ASK)).status == 200
            await stack.settled()


async def test_who_leaves_while_it_waits_leaves_nothing_behind() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        async with Stack(one.url, two.url) as stack:
            async with RawClient(stack.port) as client:
                id = await made_on(one, client)
                await one.stop()
                client.send(request_bytes("GET", f"{RESPONSES}/{id}"))
                async with asyncio.timeout(10):
                    while not len(stack.pool.holding._for_one):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
            await stack.settled()
            assert len(stack.pool.holding._for_one) == 0


async def test_no_second_opinion_and_no_fallback_for_what_one_upstream_keeps() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as other:
        pools = [
            {"name": "main", "upstreams": [one.url], "fallback": "spare", "queue": {"upstream_wait_ms": 0}},
            {"name": "spare", "upstreams": [other.url], "match": {"paths": []}},
        ]
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            id = await made_on(one, client)
            await one.stop()
            spare = minted(await client.ask("POST", RESPONSES, body=ASK))
            assert spare in other.kept, "what is new falls back"
            before = len(other.asked)
            answer = await client.ask("GET", f"{RESPONSES}/{id}")
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "keeper_away")
            assert len(other.asked) == before
            await one.start()
            stack.pools[0].expect_upstreams()
            for _ in range(3):
                assert (await client.ask("GET", f"{RESPONSES}/{spare}")).status == 200, "it is kept by the spare pool"
            await stack.settled()


async def test_an_overloaded_keeper_answers_for_itself() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url, routing="round-robin") as stack, RawClient(stack.port) as client:
            assert stack.pool.keepers is not None
            stack.pool.keepers.made("resp_1", one.url)
            for status in (503, 429, 404, 500):
                answer = await client.ask("GET", f"{RESPONSES}/resp_1", mock={"status": status})
                assert answer.status == status
            assert len(one.seen) == 4
            assert two.seen == []
            await stack.settled()


async def test_pools_told_apart_by_model_are_found_by_what_they_keep() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        pools = [
            {"name": "a", "upstreams": [one.url], "match": {"models": ["a"]}},
            {"name": "b", "upstreams": [two.url], "match": {"models": ["b"]}},
        ]
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            for model in "abba":
                id = minted(await client.ask("POST", RESPONSES, body={"model": model, "input": "hi"}))
                assert (await client.ask("GET", f"{RESPONSES}/{id}")).status == 200
                assert (await client.ask("POST", f"{RESPONSES}/{id}/cancel")).status == 200
                assert (await client.ask("DELETE", f"{RESPONSES}/{id}")).status == 200
            await stack.settled()


async def test_upstreams_that_share_what_they_keep_can_say_so() -> None:
    async with StatefulUpstream() as one, StatefulUpstream() as two:
        two.kept = one.kept
        routing = {"strategy": "round-robin", "follow_ids": False}
        async with Stack(one.url, two.url, routing=routing) as stack, RawClient(stack.port) as client:
            id = minted(await client.ask("POST", RESPONSES, body=ASK))
            for _ in range(4):
                assert (await client.ask("GET", f"{RESPONSES}/{id}")).status == 200
            assert one.asked.count(f"GET {RESPONSES}/{id}") == two.asked.count(f"GET {RESPONSES}/{id}") == 2
            assert stack.counts.follow_ups == []
            await stack.settled()


# -- bounds and reload -----------------------------------------------------------------------------------------------


async def test_memory_is_bounded_whatever_callers_and_upstreams_write() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        async with Stack(one.url, two.url) as stack, RawClient(stack.port) as client:
            keepers = stack.pool.keepers
            assert keepers is not None
            keepers._limit = 50
            for number in range(120):
                made = {"id": f"resp_{number}", "object": "response", "output_file_id": f"file-{number}"}
                body = {**ASK, "previous_response_id": f"resp_of_mine_{number}"}
                answer = await client.ask("POST", RESPONSES, body=body, mock={"body": json.dumps(made)})
                assert answer.status == 200
            assert len(keepers) == 50
            for id in ("x" * 257, 7, None, {"id": []}, ""):
                await client.ask("POST", RESPONSES, body=ASK, mock={"body": json.dumps({"id": id})})
            assert keepers.find("resp_119") is not None
            many = {"file_ids": [f"file-{number}" for number in range(3000)]}
            assert (await client.ask("POST", "/v1/vector_stores", body=many)).status == 200
            await stack.settled()


class Still:
    """Decides nothing."""

    def __init__(self, metrics: Metrics) -> None:
        self.hooks: Hooks = metrics

    def controller(self, config: PoolConfig) -> Any:
        return controller_for(config, 0.0)

    def tick(self, pool: Pool, now: float) -> None:
        """Leave it as it is."""

    def follow(self, pool: Pool, before: PoolConfig) -> None:
        """Leave it as it is."""


async def test_a_reload_keeps_the_ids_of_upstreams_that_stay_and_lets_go_of_the_others() -> None:
    def config(*upstreams: StatefulUpstream) -> Config:
        urls = [upstream.url for upstream in upstreams]
        return Config.model_validate({"upstreams": urls, "routing": "round-robin"})

    async with StatefulUpstream() as one, StatefulUpstream() as two, StatefulUpstream() as three:
        first = config(one, two)
        metrics = Metrics(first.pools, process=False)
        plane = DataPlane(first, Still(metrics), clock=LoopClock(asyncio.get_running_loop()), metrics=metrics)
        sock = bind("127.0.0.1", 0, key="listen.port", flag="--port")
        await plane.start(sock)
        try:
            async with RawClient(sock.getsockname()[1]) as client:
                stays, goes = await made_on(one, client), await made_on(two, client)
                plane.apply(config(one, three))
                keepers = plane.pools["default"].keepers
                assert keepers is not None
                assert (keepers.find(stays), keepers.find(goes)) == (one.url, None)
                for _ in range(4):
                    assert (await client.ask("GET", f"{RESPONSES}/{stays}")).status == 200
                asked = len(one.asked) + len(three.asked)
                assert (await client.ask("GET", f"{RESPONSES}/{goes}")).status == 404, "it goes as any request does"
                assert len(one.asked) + len(three.asked) > asked
                text = metrics.render()[0].decode()
                assert 'trimtab_follow_ups_total{pool="default",result="kept"} 4.0' in text
                assert 'trimtab_follow_ups_total{pool="default",result="unknown"} 1.0' in text
        finally:
            await plane.stop()
