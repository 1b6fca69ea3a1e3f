"""Merged calls: everybody gets their own, and only their own."""

from __future__ import annotations

import asyncio
from math import log2
from typing import Any

import pytest

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient

PATH = "/v1/embeddings"


def merging(size: int, window_ms: float = 5000.0, **more: Any) -> dict[str, Any]:
    """Batches that close when they are full, so that no test races a timer, at a server that somebody named."""
    return {
        "profile": "openai",
        "setpoints": {"max_batch_size": size, "window_ms": {"initial": window_ms, "max": 60_000}},
        "health": {"eject_after": 1000},
        **more,
    }


async def embed(stack: Stack, value: Any, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    async with RawClient(stack.port) as client:
        return await client.ask("POST", PATH, headers, body={"model": "m", "input": value, **fields})


async def embed_all(stack: Stack, values: list[Any], **fields: Any) -> list[Answer]:
    return await asyncio.gather(*[embed(stack, value, **fields) for value in values])


def check(values: list[str], answers: list[Answer]) -> None:
    for value, answer in zip(values, answers, strict=True):
        assert answer.status == 200, answer
        data = answer.json["data"]
        assert [d["index"] for d in data] == [0]
        assert data[0]["embedding"] == [float(len(value)), float("".join(c for c in value if c.isdigit()))]


@pytest.mark.parametrize("shuffle", [False, True])
async def test_everybody_gets_their_own_result_from_one_call(shuffle: bool) -> None:
    values = [f"text {n}" + "x" * n for n in range(8)]
    async with MockUpstream(Behaviour(shuffle=shuffle)) as up, Stack(up.url, **merging(8)) as stack:
        check(values, await embed_all(stack, values))
        assert len(up.seen) == 1
        assert sorted(up.seen[0].json["input"]) == sorted(values)
        assert stack.counts.batches == [(8, "size")]
        await stack.settled()
        assert sum(obs.prompt_tokens for obs, _, _ in stack.counts.finished) > 0
        assert {obs.batch for obs, _, _ in stack.counts.finished} == {8}


async def test_every_part_of_a_merged_answer_has_the_head_it_would_have_had_alone() -> None:
    own = [["Server", "mock"], ["X-Compute-Type", "cpu"], ["X-Compute-Type", "again"], ["ETag", "whole"]]
    how = Behaviour(reason="Fine", headers=[*own, ["Set-Cookie", "one=caller"], ["Content-Digest", "whole"]])
    async with MockUpstream(how) as up, Stack(up.url, **merging(2)) as stack:
        async with RawClient(up.port) as client:
            direct = await client.ask("POST", PATH, body={"model": "m", "input": "alone"})
        merged = await embed_all(stack, ["one", "another"])
        assert len(up.seen) == 2
        of_the_whole = {"etag", "set-cookie", "content-digest", "content-length"}
        expected = [field for field in direct.headers if field[0].lower() not in of_the_whole]
        ours = {"content-length", "x-request-id", "x-trimtab-queue-ms"}
        for answer in merged:
            assert answer.reason == "Fine"
            assert [field for field in answer.headers if field[0].lower() not in ours] == expected


@pytest.mark.parametrize(("profile", "order"), [("tei", "longest first"), ("openai", "as they came")])
async def test_an_upstream_that_pads_gets_the_longest_first_and_everybody_their_own(profile: str, order: str) -> None:
    values = [f"text {n} " + "word " * n for n in (3, 90, 1, 40, 200, 7, 0, 12)]
    async with MockUpstream() as up:
        upstreams, signals = [{"url": up.url, "profile": profile}], {"enabled": False}
        async with Stack(upstreams=upstreams, dispatch="merge", signals=signals, **merging(8)) as stack:
            check(values, await embed_all(stack, values))
            assert len(up.seen) == 1
            sent = up.seen[0].json["input"]
            longest_first = sorted(values, key=len, reverse=True)
            assert sorted(sent) == sorted(values)
            assert (sent == longest_first) is (order == "longest first")


async def test_usage_is_split_to_the_last_token() -> None:
    values = ["a1", "bb22", "cccc333"]
    async with MockUpstream() as up, Stack(up.url, **merging(3)) as stack:
        answers = await embed_all(stack, values)
        assert sum(a.json["usage"]["prompt_tokens"] for a in answers) == sum(map(len, values))


@pytest.mark.parametrize("results", [0, 3, 5, 9])
async def test_a_wrong_number_of_results_is_never_guessed_at(results: int) -> None:
    """Missing, extra or duplicate results: everybody is asked for singly."""
    values = [f"v{n}" for n in range(4)]
    async with MockUpstream(Behaviour(merged_results=results)) as up, Stack(up.url, **merging(4)) as stack:
        check(values, await embed_all(stack, values))
        assert len(up.seen) == 5
        await stack.settled()


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 16, 32])
@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
async def test_only_the_owner_of_a_poisoned_item_sees_the_error(size: int, status: int, where: str) -> None:
    values = [f"value {n}" for n in range(size)]
    guilty = {"first": 0, "middle": size // 2, "last": size - 1}[where]
    values[guilty] = "poison 666"
    behaviour = Behaviour(poison=["poison 666"], poison_status=status)
    async with MockUpstream(behaviour) as up, Stack(up.url, **merging(size)) as stack:
        answers = await embed_all(stack, values)
        assert answers.pop(guilty).status == status
        values.pop(guilty)
        check(values, answers)
        assert len(up.seen) - 1 <= 2 * log2(size) + 1
        await stack.settled()


async def test_several_poisoned_items_are_all_found() -> None:
    values = [f"value {n}" for n in range(16)]
    poisoned = {3, 4, 11}
    behaviour = Behaviour(poison=[values[n] for n in poisoned])
    async with MockUpstream(behaviour) as up, Stack(up.url, **merging(16)) as stack:
        answers = await embed_all(stack, values)
        assert {n for n, a in enumerate(answers) if a.status == 400} == poisoned
        check([v for n, v in enumerate(values) if n not in poisoned], [a for a in answers if a.status == 200])
        await stack.settled()


async def test_an_upstream_that_always_fails_is_not_hammered() -> None:
    async with MockUpstream(Behaviour(status=500)) as up, Stack(up.url, **merging(32)) as stack:
        answers = await embed_all(stack, [f"v{n}" for n in range(32)])
        assert {a.status for a in answers} == {500}
        assert len(up.seen) - 1 <= 2 * log2(32) + 1
        await stack.settled()


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
async def test_what_says_nothing_about_an_item_is_told_to_everybody_after_one_call(status: int) -> None:
    async with MockUpstream(Behaviour(status=status, retry_after="9")) as up, Stack(up.url, **merging(4)) as stack:
        answers = await embed_all(stack, [f"v{n}" for n in range(4)])
        assert {a.status for a in answers} == {status}
        assert not any(b"mock" in a.body for a in answers), "what the server says may be about any of them"
        assert {a.header("retry-after") for a in answers} == {"9"}
        assert len(up.seen) == 1
        await stack.settled()


@pytest.mark.parametrize("fault", [{"reset_before_head": True}, {"garbage": True}, {"cut_at": 20}])
async def test_a_broken_merged_call_gives_everybody_an_error_of_their_own(fault: dict[str, Any]) -> None:
    async with MockUpstream(Behaviour(**fault)) as up, Stack(up.url, **merging(4)) as stack:
        answers = await embed_all(stack, [f"v{n}" for n in range(4)])
        assert {(a.status, a.header("x-trimtab-reason")) for a in answers} == {(502, "upstream_error")}
        assert len({a.header("x-request-id") for a in answers}) == 4
        await stack.settled()


async def test_a_merged_call_that_times_out_is_504_for_everybody() -> None:
    config = merging(3, timeouts={"first_byte_ms": 60})
    async with MockUpstream(Behaviour(hang=True)) as up, Stack(up.url, **config) as stack:
        answers = await embed_all(stack, [f"v{n}" for n in range(3)])
        assert {a.status for a in answers} == {504}
        assert len(up.seen) == 1
        await stack.settled()


# -- who may share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "headers", "path"),
    [
        ({"model": "other"}, {}, PATH),
        ({"dimensions": 3}, {}, PATH),
        ({"encoding_format": "base64"}, {}, PATH),
        ({"user": "u2"}, {}, PATH),
        ({}, {"Authorization": "Bearer two"}, PATH),
        ({}, {"OpenAI-Organization": "two"}, PATH),
        ({}, {"X-Trimtab-Tenant": "two"}, PATH),
        ({}, {}, PATH + "?api-version=2"),
        ({}, {}, "/other/v1/embeddings"),
    ],
)
async def test_what_differs_in_more_than_its_input_never_shares_a_call(
    fields: dict[str, Any], headers: dict[str, str], path: str
) -> None:
    async with MockUpstream() as up, Stack(up.url, **merging(2, 50.0)) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as other:
            answers = await asyncio.gather(
                one.ask("POST", PATH, {"Authorization": "Bearer one"}, body={"model": "m", "input": "a1"}),
                other.ask(
                    "POST",
                    path,
                    {"Authorization": "Bearer one", **headers},
                    body={"model": "m", "input": "b2", **fields},
                ),
            )
        assert [a.status for a in answers] == [200, 200]
        assert len(up.seen) == 2
        await stack.settled()


async def test_what_differs_only_in_harmless_headers_shares_a_call() -> None:
    async with MockUpstream() as up, Stack(up.url, **merging(2)) as stack:
        answers = await asyncio.gather(
            embed(stack, "a1", {"User-Agent": "x", "X-Request-Id": "r1", "Accept": "*/*"}),
            embed(stack, "b2", {"User-Agent": "y", "X-Request-Id": "r2", "traceparent": "00-1"}),
        )
        check(["a1", "b2"], answers)
        assert [a.header("x-request-id") for a in answers] == ["r1", "r2"]
        assert len(up.seen) == 1


async def test_a_lone_request_is_sent_byte_for_byte() -> None:
    body = b'{ "input":"only 1", "model" : "m","x":1e2 }'
    async with MockUpstream() as up, Stack(up.url, **merging(8, 1.0)) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, {"X-Own": "1"}, body=body, mock={"headers": [["X-Up", "2"]]})
        assert up.seen[0].body == body
        assert up.seen[0].header("x-own") == "1"
        assert answer.header("x-up") == "2"


# -- items and tokens --------------------------------------------------------------------------------------


async def test_lists_count_by_their_items() -> None:
    async with MockUpstream() as up, Stack(up.url, **merging(4)) as stack:
        three, one = await asyncio.gather(embed(stack, ["a1", "b2", "c3"]), embed(stack, "d4"))
        assert [d["embedding"][1] for d in three.json["data"]] == [1.0, 2.0, 3.0]
        assert [d["index"] for d in three.json["data"]] == [0, 1, 2]
        assert one.json["data"][0]["embedding"][1] == 4.0
        assert len(up.seen) == 1


async def test_an_oversize_list_goes_alone_at_once() -> None:
    async with MockUpstream() as up, Stack(up.url, **merging(4)) as stack:
        answer = await embed(stack, [f"v{n}" for n in range(9)])
        assert len(answer.json["data"]) == 9
        assert stack.counts.batches == [(9, "size")]
        assert len(up.seen) == 1


async def test_a_token_budget_bounds_a_call() -> None:
    config = merging(100, max_batch_tokens=20)
    async with MockUpstream() as up, Stack(up.url, **config) as stack:
        values = [("word " * 12) + str(n) for n in range(6)]
        check(values, await embed_all(stack, values))
        assert len(up.seen) >= 3


# -- the window --------------------------------------------------------------------------------------------


async def test_express_requests_do_not_wait_for_the_window() -> None:
    async with MockUpstream() as up, Stack(up.url, **merging(8)) as stack:
        check(["a1"], [await embed(stack, "a1", {"X-Trimtab-Class": "interactive"})])
        assert stack.counts.batches == [(1, "express")]
        assert len(up.seen) == 1


async def test_completions_merge_in_merge_mode_only() -> None:
    for dispatch, calls in (("merge", 1), ("auto", 2), ("gate", 2)):
        async with (
            MockUpstream() as up,
            Stack(up.url, **merging(2, 0.0 if calls == 2 else 5000.0), dispatch=dispatch) as stack,
        ):

            async def complete(prompt: str, stack: Stack = stack) -> Answer:
                async with RawClient(stack.port) as client:
                    return await client.ask("POST", "/v1/completions", body={"model": "m", "prompt": prompt})

            answers = await asyncio.gather(complete("a"), complete("b"))
            assert [a.json["choices"][0]["text"] for a in answers] == ["answer to a", "answer to b"]
            assert len(up.seen) == calls
            await stack.settled()


async def test_the_model_is_renamed_where_the_upstream_wants_another() -> None:
    config = merging(2)
    async with (
        MockUpstream() as up,
        Stack(upstreams=[{"url": up.url, "model": "real", "profile": "openai"}], **config) as stack,
    ):
        check(["a1", "b2"], await embed_all(stack, ["a1", "b2"]))
        assert up.seen[0].json["model"] == "real"
