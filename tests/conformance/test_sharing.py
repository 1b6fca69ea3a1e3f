"""What shares a call: nothing that was not proved, at nobody who was not recognised, and nothing of one caller's."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient
from tests.support.scripted import Asked, Said, Scripted

INFER, PREDICT, EMBEDDINGS = "/v2/models/m/infer", "/v1/models/m:predict", "/v1/embeddings"


def full(size: int, **more: Any) -> dict[str, Any]:
    """Batches that close when they are full, or soon."""
    return {"setpoints": {"max_batch_size": size, "window_ms": {"initial": 200.0, "max": 60_000}}, **more}


async def ask(port: int, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    async with RawClient(port) as client:
        return await client.ask("POST", path, headers, body=json.dumps(body))


async def ask_all(port: int, path: str, bodies: list[Any]) -> list[Answer]:
    return await asyncio.gather(*[ask(port, path, body) for body in bodies])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def infer(shape: list[int], data: Any, **fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}], **fields}


def flattening(asked: Asked) -> Said:
    """Read a tensor as Triton does: all numbers in a row, the total checked against the shape. Doubles each row."""

    def flat(value: Any) -> list[Any]:
        return [leaf for inner in value for leaf in flat(inner)] if isinstance(value, list) else [value]

    (tensor,) = asked.json["inputs"]
    values = flat(tensor["data"])
    if len(values) != math.prod(tensor["shape"]):
        return Said({"error": f"{len(values)} elements"}, 400)
    output = {**tensor, "name": "y", "data": [2 * value for value in values]}
    answer = {"model_name": "m", "model_version": "1", "outputs": [output]}
    return Said({"id": asked.json["id"], **answer} if "id" in asked.json else answer)


# -- what is proved ----------------------------------------------------------------------------------------------


async def test_rows_of_a_wrong_length_push_nobodys_result_along() -> None:
    bodies = [infer([1, 3], [[1, 1, 1, 1, 1, 1]]), infer([1, 3], [[100, 100, 100]]), infer([1, 3], [[]])]
    async with Scripted(flattening) as up, Stack(up.url, dispatch="merge", **full(3)) as stack:
        answers = await ask_all(stack.port, INFER, bodies)
        direct = await ask_all(up.port, INFER, bodies)
    assert [(a.status, a.json) for a in answers] == [(d.status, d.json) for d in direct]
    assert [a.status for a in answers] == [400, 200, 400]


@pytest.mark.parametrize("shape", [[10**17, 0], [0, 2**63 - 1], [2**63, 0, 2**63]])
async def test_a_claimed_shape_goes_alone_and_holds_up_nobody(shape: list[int]) -> None:
    async with Scripted(flattening) as up, Stack(up.url, dispatch="merge", **full(2)) as stack:
        claimed, honest, other = await asyncio.wait_for(
            ask_all(stack.port, INFER, [infer(shape, []), infer([1, 1], [1]), infer([1, 1], [2])]), 20
        )
        assert (claimed.status, claimed.json["outputs"][0]["shape"]) == (200, shape)
        assert [a.json["outputs"][0]["data"] for a in (honest, other)] == [[2], [4]]
        assert stack.pool.queue.items == 0


# -- who is recognised -------------------------------------------------------------------------------------------


def softmax(asked: Asked) -> Said:
    """A KServe model of somebody's own, which normalises over its instances."""
    exponents = [math.exp(value) for value in asked.json["instances"]]
    return Said({"predictions": [value / sum(exponents) for value in exponents]})


def bento(asked: Asked) -> Said:
    """A service of somebody's own that calls its endpoint /embed: flat for a text, nested for a list."""
    given = asked.json["inputs"]
    vector = [[float(len(text)), float(ord(text[0]))] for text in ([given] if isinstance(given, str) else given)]
    return Said(vector[0] if isinstance(given, str) else vector)


@pytest.mark.parametrize(
    ("server", "path", "bodies"),
    [
        (softmax, PREDICT, [{"instances": [0, 1.5 + n]} for n in range(8)]),
        (bento, "/embed", [{"inputs": "a" * (n + 1)} for n in range(8)]),
        (flattening, INFER, [infer([1, 1], [n]) for n in range(8)]),
    ],
    ids=["predict", "embed", "infer"],
)
async def test_without_a_word_of_configuration_company_changes_no_answer(server: Any, path: str, bodies: Any) -> None:
    async with Scripted(server, delay=0.01) as up, Stack(up.url, **full(8)) as stack:
        for _ in range(3):
            answers = await ask_all(stack.port, path, bodies)
            direct = await ask_all(up.port, path, bodies)
            assert [a.body for a in answers] == [d.body for d in direct]


def openai(asked: Asked, **more: Any) -> Said:
    """Embeddings as OpenAI has them."""
    given = asked.json["input"]
    texts = [given] if isinstance(given, str) else given
    data = [{"object": "embedding", "index": i, "embedding": [float(len(t)), 0.5]} for i, t in enumerate(texts)]
    return Said(
        {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}, **more}
    )


async def test_an_upstream_that_answers_as_openai_does_is_recognised_and_merged() -> None:
    async with Scripted(openai) as up, Stack(up.url, **full(8)) as stack:
        await ask(stack.port, EMBEDDINGS, {"input": "one"})
        assert [d.rule for d in stack.pool.controller.decisions.since(0)] == ["merge.recognised"]
        up.asked.clear()
        answers = await ask_all(stack.port, EMBEDDINGS, [{"input": "x" * (n + 1)} for n in range(8)])
        assert [a.json["data"][0]["embedding"][0] for a in answers] == [float(n + 1) for n in range(8)]
        assert len(up.asked) == 1
        up.asked.clear()
        await ask_all(stack.port, "/v9/embeddings", [{"input": "one"}, {"input": "two"}])
        assert len(up.asked) == 2, "another path may be something else"


async def test_all_upstreams_of_a_pool_must_have_been_recognised() -> None:
    def other(asked: Asked) -> Said:
        return Said([{"embedding": [[1.0]], "index": 0}])

    routing = {"strategy": "round-robin"}
    async with Scripted(openai) as one, Scripted(other) as two, Stack(one.url, two.url, routing=routing) as stack:
        for _ in range(4):
            await ask_all(stack.port, EMBEDDINGS, [{"input": "one"}] * 4)
        assert len(one.asked) + len(two.asked) == 16


async def test_what_cannot_be_divided_is_asked_for_twice_a_few_times_only() -> None:
    def native(asked: Asked) -> Said:
        given = asked.json["input"]
        return Said([{"index": i, "embedding": [[1.0]]} for i in range(1 if isinstance(given, str) else len(given))])

    async with Scripted(native) as up, Stack(up.url, profile="openai", **full(2)) as stack:
        for _ in range(3):
            await ask_all(stack.port, "/embeddings", [{"input": "one"}, {"input": "two"}])
        assert len(up.asked) == 9
        up.asked.clear()
        for _ in range(5):
            await ask_all(stack.port, "/embeddings", [{"input": "one"}, {"input": "two"}])
        assert len(up.asked) == 10, "alone, and once"
        (decision,) = stack.pool.controller.decisions.since(0)
        assert decision.rule == "merge.undivided"
        assert decision.new == {"route": "embeddings", "path": "/embeddings", "dispatch": "alone"}


@pytest.mark.parametrize(
    ("config", "after"), [({"profile": "tf-serving"}, "merged"), ({"dispatch": "merge"}, "merged")]
)
async def test_a_standing_check_says_when_company_changes_answers(config: dict[str, Any], after: str) -> None:
    async with Scripted(softmax) as up, Stack(up.url, check_merged_every=1, **config, **full(4)) as stack:
        await ask_all(stack.port, PREDICT, [{"instances": [0, n]} for n in (1, 2)])
        await until(lambda: bool(stack.pool.controller.decisions.since(0)))
        (said,) = stack.pool.controller.decisions.since(0)
        assert (said.rule, said.new["dispatch"]) == ("merge.differs", "merged"), "as it was asked for"
        assert len(up.asked) == 2


async def test_an_upstream_that_was_only_recognised_is_left_alone_once_company_changed_an_answer() -> None:
    def moody(asked: Asked) -> Said:
        said = openai(asked)
        for result in said.body["data"]:
            result["embedding"] = [float(len(said.body["data"])), 1.0]
        return said

    async with Scripted(moody) as up, Stack(up.url, check_merged_every=1, **full(2)) as stack:
        await ask(stack.port, EMBEDDINGS, {"input": "one"})
        await ask_all(stack.port, EMBEDDINGS, [{"input": "one"}, {"input": "two"}])
        await until(lambda: stack.pool.controller.decisions.latest(1)[0].rule == "merge.differs")
        assert stack.pool.controller.decisions.latest(1)[0].new["dispatch"] == "alone"
        up.asked.clear()
        answers = await ask_all(stack.port, EMBEDDINGS, [{"input": "one"}, {"input": "two"}])
        assert [a.json["data"][0]["embedding"] for a in answers] == [[1.0, 1.0]] * 2
        assert len(up.asked) == 2


# -- whose it is -------------------------------------------------------------------------------------------------

SECRETS = ["secret-alpha", "secret-bravo", "secret-charlie"]


def quoting(status: int) -> Any:
    def answer(asked: Asked) -> Said:
        words = f"about {asked.json['input']}"
        return Said(
            {"error": {"message": words}, "detail": words}, status, [("X-About", words), ("Retry-After", "7")]
        )

    return answer


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 429, 500, 503])
async def test_a_shared_failure_is_told_in_words_of_our_own(status: int) -> None:
    async with Scripted(quoting(status)) as up, Stack(up.url, profile="openai", **full(3)) as stack:
        answers = await ask_all(stack.port, EMBEDDINGS, [{"input": secret} for secret in SECRETS])
    assert [a.status for a in answers] == [status] * 3
    for mine, answer in zip(SECRETS, answers, strict=True):
        text = answer.body.decode() + repr(answer.headers)
        assert not any(secret in text for secret in SECRETS if secret != mine)
        assert answer.json["error"]["message"]
        assert answer.header("retry-after") == "7"


@pytest.mark.parametrize(
    "field",
    [{"warnings": "W"}, {"debug": {"of": "W"}}, {"usage": {"prompt_tokens": 1, "note": "W"}}, {"notes": ["W"]}],
)
async def test_words_of_a_shared_answer_go_to_nobody_else(field: dict[str, Any]) -> None:
    def warning(asked: Asked) -> Said:
        words = json.loads(json.dumps(field).replace("W", " ".join(asked.json["input"])))
        return openai(asked, **words)

    async with Scripted(warning) as up, Stack(up.url, profile="openai", **full(3)) as stack:
        answers = await ask_all(stack.port, EMBEDDINGS, [{"input": [secret]} for secret in SECRETS])
    for mine, answer in zip(SECRETS, answers, strict=True):
        assert answer.status == 200
        assert [secret for secret in SECRETS if secret.encode() in answer.body] == [mine], "as it would have alone"


async def test_fields_of_one_caller_go_to_nobody_else_and_ids_are_everybodys_own() -> None:
    numbers = iter(range(100))

    def kserve(asked: Asked) -> Said:
        said, number = flattening(asked), next(numbers)
        fields = [("ce-id", str(number)), ("ce-requestid", f"r{number}"), ("X-Model", "7"), ("Server", "kserve")]
        return Said({"id": "9b1f8a3e-0f8b-4f0e-8a52-6c1d1d3f8a11", **said.body}, 200, fields)

    async with Scripted(kserve) as up, Stack(up.url, dispatch="merge", **full(3)) as stack:
        for turn in range(2):
            answers = await ask_all(
                stack.port, INFER, [infer([1, 1], [1]), infer([1, 1], [2]), infer([1, 1], [3], id="mine")]
            )
            assert len(up.asked) == turn + 1
            assert "id" not in up.asked[-1].json
            ids = [answer.json["id"] for answer in answers]
            assert len(set(ids)) == 3
            assert ids[2] == "mine"
            assert all(len(one) == 36 for one in ids[:2])
            for answer in answers:
                assert answer.header("ce-id") is answer.header("ce-requestid") is None
                assert answer.header("server") == "kserve"
                assert answer.header("x-model") == (None if turn == 0 else "7"), "the same for different calls"


async def test_a_shared_call_carries_nothing_of_a_single_caller() -> None:
    own = [
        {"X-Forwarded-For": f"10.0.0.{n}", "X-Request-Id": f"own-{n}", "baggage": f"user=own-{n}",
         "User-Agent": f"own-{n}", "traceparent": f"00-own-{n}", "Authorization": "Bearer all", "X-Same": "same"}
        for n in range(3)
    ]  # fmt: skip
    async with Scripted(openai) as up, Stack(up.url, profile="openai", **full(3)) as stack:
        answers = await asyncio.gather(
            *[ask(stack.port, EMBEDDINGS, {"input": f"text {n}"}, headers) for n, headers in enumerate(own)]
        )
        (asked,) = up.asked
    assert [a.header("x-request-id") for a in answers] == ["own-0", "own-1", "own-2"]
    seen = repr(asked.headers)
    assert "own-" not in seen
    assert "10.0.0." not in seen
    assert (asked.header("authorization"), asked.header("x-same")) == ("Bearer all", "same")
    assert asked.header("x-request-id")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer two"},
        {"x-api-key": "two"},
        {"Cookie": "two"},
        {"Content-Type": "text/plain"},
        {"Accept": "application/octet-stream"},
        {"Host": "two.example"},
    ],
)
async def test_what_may_change_an_answer_keeps_requests_apart(headers: dict[str, str]) -> None:
    async with Scripted(openai) as up, Stack(up.url, profile="openai", **full(2)) as stack:
        await asyncio.gather(
            ask(stack.port, EMBEDDINGS, {"input": "one"}, {"Content-Type": "application/json"}),
            ask(stack.port, EMBEDDINGS, {"input": "two"}, {"Content-Type": "application/json", **headers}),
        )
        assert len(up.asked) == 2


async def test_where_to_go_instead_is_asked_for_one_by_one() -> None:
    def elsewhere(asked: Asked) -> Said:
        return Said({}, 307, [("Location", f"/for/{asked.json['input']}")])

    async with Scripted(elsewhere) as up, Stack(up.url, profile="openai", **full(2)) as stack:
        answers = await ask_all(stack.port, EMBEDDINGS, [{"input": "one"}, {"input": "two"}])
    assert [(a.status, a.header("location")) for a in answers] == [(307, "/for/one"), (307, "/for/two")]
