"""The bundled worker with the demo model: a real process, a real client, real text."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.e2e.worker_process import WorkerProcess, eventually, started_worker
from tests.support.late import late

openai = late("openai")

CAPITAL = "The capital of France is"
BLOCKS = 160


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    flags = ("--model", "demo", "--dtype", "float32", "--num-blocks", str(BLOCKS), "--max-num-seqs", "16")
    with started_worker(*flags) as worker:
        yield worker


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def complete(client: openai.AsyncOpenAI, prompt: str = CAPITAL, **parameters: Any) -> Any:
    return await client.completions.create(model="demo", prompt=prompt, **{"temperature": 0, **parameters})


async def test_greedy_completion_knows_the_capital_of_france(client: openai.AsyncOpenAI) -> None:
    answer = await complete(client, max_tokens=8)
    assert "Paris" in answer.choices[0].text
    assert answer.usage.prompt_tokens == 5


async def test_chat_streams_what_it_answers_at_once(client: openai.AsyncOpenAI) -> None:
    request: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = await client.chat.completions.create(**request)
    text, usage = "", None
    stream = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert "Paris" in text
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


async def test_stop_string_ends_the_text_before_it(client: openai.AsyncOpenAI) -> None:
    whole = (await complete(client, max_tokens=24)).choices[0].text
    stop = whole[6:11]
    answer = await complete(client, max_tokens=24, stop=[stop])
    choice = answer.choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    assert choice.model_extra["stop_reason"] == stop
    kept = await complete(client, max_tokens=24, stop=[stop], extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == whole[: whole.index(stop) + len(stop)]


async def test_seeded_choices_repeat_and_choice_i_uses_seed_plus_i(client: openai.AsyncOpenAI) -> None:
    parameters: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}
    first = await complete(client, n=2, seed=7, **parameters)
    again = await complete(client, n=2, seed=7, **parameters)
    second_alone = await complete(client, seed=8, **parameters)
    texts = [choice.text for choice in first.choices]
    assert texts[0] != texts[1]
    assert texts == [choice.text for choice in again.choices]
    assert texts[1] == second_alone.choices[0].text
    assert first.usage.prompt_tokens == 5
    assert first.usage.completion_tokens == 24


async def test_mixed_concurrent_requests_equal_themselves_alone(client: openai.AsyncOpenAI) -> None:
    prompts = [CAPITAL, "1, 2, 3, 4,", "Once upon a time", "def add(a, b):\n    return"] * 2
    lengths = [4, 20, 9, 16, 12, 6, 24, 3]
    alone = [
        (await complete(client, prompt, max_tokens=length)).choices[0].text
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    together = await asyncio.gather(
        *[complete(client, prompt, max_tokens=length) for prompt, length in zip(prompts, lengths, strict=True)]
    )
    assert [answer.choices[0].text for answer in together] == alone


async def test_a_list_of_prompts_equals_its_members_alone(client: openai.AsyncOpenAI) -> None:
    prompts = [CAPITAL, "Once upon a time"]
    together = await client.completions.create(model="demo", prompt=prompts, temperature=0, max_tokens=6)
    alone = [(await complete(client, prompt, max_tokens=6)).choices[0].text for prompt in prompts]
    assert [choice.text for choice in together.choices] == alone


async def test_logprobs_are_of_the_model_and_greedy_takes_the_first(client: openai.AsyncOpenAI) -> None:
    answer = await complete(client, max_tokens=3, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert max(top.values()) == pytest.approx(top[token]) == pytest.approx(logprob)
        assert sum(map(math.exp, top.values())) <= 1 + 1e-6


async def test_second_request_with_the_same_prompt_reuses_its_blocks(client: openai.AsyncOpenAI) -> None:
    prompt = "Here is a list of the numbers that come after ninety-nine, in words: " * 4
    salted = {"cache_salt": "this test"}
    first = await complete(client, prompt, max_tokens=2, extra_body=salted)
    second = await complete(client, prompt, max_tokens=2, extra_body=salted)
    other = await complete(client, prompt, max_tokens=2, extra_body={"cache_salt": "another tenant"})
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, second, other)]
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 16
    assert first.choices[0].text == second.choices[0].text == other.choices[0].text


async def test_clients_that_leave_at_any_moment_leave_no_block_behind(
    worker: WorkerProcess, client: openai.AsyncOpenAI
) -> None:
    chance = random.Random(11)

    async def leave(i: int) -> None:
        request: dict[str, Any] = {"prompt": f"{i}: {CAPITAL}", "max_tokens": 200, "extra_body": {"ignore_eos": True}}
        if i % 2:
            stream = await complete(client, **request, stream=True, n=1 + i % 3)
            for _ in range(chance.randrange(1, 4)):
                await anext(stream)
            await stream.close()
        else:
            task = asyncio.create_task(complete(client, **request))
            await asyncio.wait([task], timeout=chance.random())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*[leave(i) for i in range(24)])

    def settled() -> bool:
        metrics = worker.metrics()
        return not metrics["vllm:num_requests_running"] and not metrics["vllm:num_requests_waiting"]

    await asyncio.to_thread(eventually, settled)
    metrics = worker.metrics()
    assert metrics["trimtab_worker_kv_blocks_owned"] == 0
    free, cached = metrics["trimtab_worker_kv_blocks_free"], metrics["trimtab_worker_kv_blocks_cached"]
    assert free + cached == metrics["trimtab_worker_kv_blocks_total"] == BLOCKS
    assert "Paris" in (await complete(client, max_tokens=8)).choices[0].text


async def test_prompt_that_does_not_fit_is_a_400_with_the_numbers(
    worker: WorkerProcess, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(client, "word " * 9000)
    assert refused.value.code == "context_length_exceeded"
    assert str(worker.ready["max_model_len"]) in refused.value.message


async def test_embeddings_are_unit_vectors_that_tell_meaning_apart(client: openai.AsyncOpenAI) -> None:
    texts = ["The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Quarterly revenue grew by 8%."]
    answer = await client.embeddings.create(model="demo", input=texts)
    cat, kitten, revenue = (entry.embedding for entry in answer.data)

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    for vector in (cat, kitten, revenue):
        assert dot(vector, vector) == pytest.approx(1, abs=1e-4)
    assert dot(cat, kitten) > dot(cat, revenue)


async def test_demanded_json_is_what_comes(client: openai.AsyncOpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Japan"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    answer = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Name a city."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        n=3,
        seed=3,
        max_tokens=80,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        document = json.loads(choice.message.content or "")
        assert document["country"] in ("France", "Japan")
        assert len(document["city"]) <= 20
    chosen = await complete(client, "Is the sky blue? Answer:", extra_body={"guided_choice": ["yes", "no"]})
    assert chosen.choices[0].text in ("yes", "no")


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
        {"guided_grammar": 'start: "a" start'},
        {"guided_grammar": "start: r0\n" + "".join(f'r{i}: "x" r{i + 1}\n' for i in range(9000)) + 'r9000: "z"'},
        {"guided_regex": r"a[^\s\S]"},
        {"guided_grammar": 'start: "a"{200000}'},
        {"guided_grammar": 'start: ("b" | ("b" "b"){0,9000}){5,9000}'},  # too much only after some tokens
    ],
)
async def test_grammar_that_cannot_be_followed_is_a_400_and_disturbs_nobody(
    worker: WorkerProcess, client: openai.AsyncOpenAI, constraint: dict[str, Any]
) -> None:
    pytest.importorskip("llguidance")
    alone = await complete(client, max_tokens=40)

    async def refused() -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as refusal:
            await complete(client, max_tokens=100, n=2, extra_body=constraint)
        return refusal.value

    beside, *errors = await asyncio.gather(complete(client, max_tokens=40), refused(), refused())
    assert beside.choices[0].text == alone.choices[0].text
    for error in errors:
        assert error.param == next(iter(constraint))
        assert "cannot be enforced" in error.message
    assert worker.status("/health") == 200
    eventually(lambda: worker.metrics()["trimtab_worker_kv_blocks_owned"] == 0)


async def test_models_and_health(worker: WorkerProcess, client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == ["SmolLM2-135M-Instruct", "demo"]
    assert worker.status("/health") == 200


async def test_metrics_count_what_was_served(worker: WorkerProcess, client: openai.AsyncOpenAI) -> None:
    before = worker.metrics()
    answer = await complete(client, max_tokens=5, extra_body={"ignore_eos": True})
    after = worker.metrics()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:prompt_tokens_total"] == answer.usage.prompt_tokens
    assert grown["vllm:generation_tokens_total"] == 5
    assert grown["vllm:time_to_first_token_seconds_count"] == 1
    assert grown["vllm:inter_token_latency_seconds_count"] == 4
    assert grown["trimtab_worker_steps_total"] >= 5
