"""The `openai` package, unmodified, against the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import FakeEngine
from tests.support.late import late

openai = late("openai")


@pytest.fixture
async def client(worker: Worker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=worker.url + "v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], n=2, seed=1, logprobs=True, top_logprobs=1
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello, world!"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "A"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_streaming_chat_with_usage(client: openai.AsyncOpenAI) -> None:
    text, usages, reasons = "", [], []
    stream = await client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            assert chunk.choices == []
            usages.append(chunk.usage)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == "Hello, world!"
    assert [usage.completion_tokens for usage in usages] == [13]
    assert [reason for reason in reasons if reason] == ["stop"]


async def test_stream_helper_assembles_the_final_message(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="fake", messages=[{"role": "user", "content": "hi"}], n=2
    ) as stream:
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello, world!"] * 2


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt=["a", "b"], logprobs=1, max_tokens=4)
    assert [choice.text for choice in answer.choices] == ["Hell", "Hell"]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    stream = await client.completions.create(model="fake", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, world!"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == ["fake", "alias"]
    assert (await client.models.retrieve("alias")).owned_by == "trimtab"


async def test_embeddings_in_a_batch(client: openai.AsyncOpenAI) -> None:
    """The client asks for base64 unless told otherwise, and decodes it itself."""
    answer = await client.embeddings.create(model="fake", input=["a", "bc", "def"])
    assert [entry.embedding[0] for entry in answer.data] == [1.0, 2.0, 3.0]
    answer = await client.embeddings.create(model="fake", input="a", encoding_format="float")
    assert answer.data[0].embedding == [1.0, 0.0, 0.5]


async def test_errors_become_the_clients_own_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x"}], temperature=-1
        )
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"


async def test_broken_stream_raises_in_the_client(worker: Worker, client: openai.AsyncOpenAI) -> None:
    worker.engine.fail_at = 4
    stream = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x"}], stream=True
    )
    texts: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="signal 9"):
        await read()
    assert "".join(texts) == "Hell"


async def test_tool_calls(start_worker: StartWorker) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    worker = await start_worker(FakeEngine(lambda request, index: "Let me see. " + call), tool_format="hermes")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    async with openai.AsyncOpenAI(base_url=worker.url + "v1", api_key="none") as client:
        answer = await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "weather?"}],
            tools=tools,  # type: ignore[arg-type]
        )
        async with client.chat.completions.stream(
            model="fake",
            messages=[{"role": "user", "content": "weather?"}],
            tools=tools,  # type: ignore[arg-type]
        ) as stream:
            streamed = await stream.get_final_completion()
    for choice in (answer.choices[0], streamed.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see. "
        assert choice.message.tool_calls is not None
        (tool_call,) = choice.message.tool_calls
        assert tool_call.type == "function"
        assert (tool_call.function.name, tool_call.function.arguments) == ("weather", '{"city":"Paris"}')
    assert 'tools: ["weather"]' in bytes(worker.engine.requests[0].prompt_token_ids).decode()
