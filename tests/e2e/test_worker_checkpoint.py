"""The worker on a Hugging Face directory whose chat template knows tools. The weights are random: only a grammar
makes them say anything sensible."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.e2e.tiny_checkpoint import make_tiny_checkpoint
from tests.e2e.worker_process import WorkerProcess, started_worker
from tests.support.late import late

openai = late("openai")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Zürich"]}, "metric": {"type": "boolean"}},
                "required": ["city", "metric"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]
ASK: Any = [{"role": "user", "content": "How is it there?"}]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-random")
    with started_worker("--model", str(path), "--num-blocks", "256", "--policy", "sjf") as worker:
        yield worker


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_model_is_named_after_its_directory(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == ["tiny-random"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "time"}), ({"type": "function", "function": {"name": "time"}}, {"time"})],
)
async def test_forced_tool_call_fits_its_schema_streamed_and_not(
    client: openai.AsyncOpenAI, choice: Any, names: set[str]
) -> None:
    pytest.importorskip("llguidance")
    request: dict[str, Any] = {
        "model": "tiny-random",
        "messages": ASK,
        "tools": TOOLS,
        "tool_choice": choice,
        "n": 4,
        "seed": 5,
        "max_tokens": 300,
    }
    answer = await client.chat.completions.create(**request)
    async with client.chat.completions.stream(**request) as stream:
        streamed = await stream.get_final_completion()
    for one, other in zip(answer.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason == "tool_calls"
        assert one.message.content is None
        assert one.message.tool_calls is not None
        assert other.message.tool_calls is not None
        (call,), (again,) = one.message.tool_calls, other.message.tool_calls
        assert call.type == again.type == "function"
        assert call.function.name in names
        assert (call.function.name, call.function.arguments) == (again.function.name, again.function.arguments)
        arguments = json.loads(call.function.arguments)
        assert arguments["city"] in ("Paris", "Zürich")
        assert isinstance(arguments["metric"], bool)


async def test_any_bytes_the_model_writes_stream_as_whole_characters(client: openai.AsyncOpenAI) -> None:
    """Random weights write random bytes: hardly anything is valid UTF-8, and the stream still equals the answer."""
    request: dict[str, Any] = {
        "model": "tiny-random",
        "prompt": "z",
        "max_tokens": 200,
        "seed": 1,
        "temperature": 2,
        "extra_body": {"ignore_eos": True, "top_k": 0},
    }
    whole = (await client.completions.create(**request)).choices[0].text
    streamed = ""
    async for chunk in await client.completions.create(**request, stream=True):
        streamed += chunk.choices[0].text
    assert streamed == whole
    assert "�" in whole


async def test_mixed_constrained_and_free_choices_do_not_disturb_each_other(client: openai.AsyncOpenAI) -> None:
    pytest.importorskip("llguidance")
    words = ["alpha", "beta", "gamma"]

    async def free(seed: int) -> str:
        answer = await client.completions.create(model="tiny-random", prompt="free", seed=seed, max_tokens=30)
        return answer.choices[0].text

    async def held(seed: int) -> str:
        answer = await client.completions.create(
            model="tiny-random", prompt="held", seed=seed, max_tokens=30, extra_body={"guided_choice": words}
        )
        return answer.choices[0].text

    alone = [await free(seed) for seed in range(4)], [await held(seed) for seed in range(4)]
    together = await asyncio.gather(*[make(seed) for seed in range(4) for make in (free, held)])
    assert (together[::2], together[1::2]) == alone
    assert set(alone[1]) <= set(words)
