"""The `openai` client, unmodified, through `trimtab serve`: only the base URL is ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.e2e.spine_process import Trimtab, mock_upstream
from tests.support.late import late

openai = late("openai")

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trimtab]:
    with mock_upstream() as mock:
        folder = tmp_path_factory.mktemp("client")
        with Trimtab.serve(folder, "--upstream", mock) as running:
            yield running


@pytest.fixture
async def client(proxy: Trimtab) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{proxy.proxy}/v1", api_key="sk-any", max_retries=0) as client:
        yield client


def ask(**behaviour: Any) -> dict[str, str]:
    """Return the header that tells the mock how to behave."""
    return {"x-mock": json.dumps(behaviour)}


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="mock", messages=MESSAGES)
    assert answer.choices[0].message.content == "x " * 4
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_streaming_chat_with_usage(client: openai.AsyncOpenAI) -> None:
    text, usage = "", None
    stream = await client.chat.completions.create(
        model="mock", messages=MESSAGES, stream=True, stream_options={"include_usage": True},
        extra_headers=ask(tokens=6),
    )  # fmt: skip
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "".join(f" täg-{index} 漢字 🙂" for index in range(6))
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 6)


async def test_usage_is_not_sent_to_who_did_not_ask(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="mock", messages=MESSAGES, stream=True)
    assert [chunk.usage async for chunk in stream if chunk.usage is not None] == []


async def test_embeddings_batch_in_the_clients_base64(client: openai.AsyncOpenAI) -> None:
    """The client asks for base64 unless told otherwise, and decodes it."""
    texts = [f"text {number}" for number in (3, 1, 2)]
    answer = await client.embeddings.create(model="mock", input=texts)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert [entry.embedding for entry in answer.data] == [[6.0, 3.0], [6.0, 1.0], [6.0, 2.0]]


async def test_concurrent_embeddings_merge_and_everybody_gets_their_own(
    proxy: Trimtab, client: openai.AsyncOpenAI
) -> None:
    # One alone shows what the server is.
    await client.embeddings.create(model="mock", input=["1"])
    before = await asyncio.to_thread(proxy.metrics)

    async def embed(number: int) -> list[list[float]]:
        texts = [f"{number * 10 + item}" for item in range(1 + number % 3)]
        answer = await client.embeddings.create(model="mock", input=texts, extra_headers=ask(delay=0.1, shuffle=True))
        # An upstream may list results in any order; `index` says which is which.
        return [entry.embedding for entry in sorted(answer.data, key=lambda entry: entry.index)]

    answers = await asyncio.gather(*map(embed, range(10, 34)))
    for number, vectors in zip(range(10, 34), answers, strict=True):
        assert vectors == [[3.0, float(number * 10 + item)] for item in range(1 + number % 3)]
    after = await asyncio.to_thread(proxy.metrics)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["trimtab_batch_size_count"] < 24, "fewer upstream calls than requests"
    assert grown["trimtab_batch_size_sum"] == sum(map(len, answers))


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="mock", prompt=["one", "two"])
    assert [choice.text for choice in answer.choices] == ["answer to one", "answer to two"]


async def test_list_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == ["mock"]


@pytest.mark.parametrize(
    ("status", "exception"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
    ],
)
async def test_an_upstreams_own_error_reaches_the_client_as_it_is(
    client: openai.AsyncOpenAI, status: int, exception: str
) -> None:
    with pytest.raises(getattr(openai, exception), match=f"mock says {status}"):
        await client.chat.completions.create(model="mock", messages=MESSAGES, extra_headers=ask(status=status))


async def test_an_upstream_that_breaks_is_an_internal_server_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as broken:
        await client.chat.completions.create(
            model="mock", messages=MESSAGES, extra_headers=ask(close_before_head=True)
        )
    assert broken.value.status_code == 502
    assert broken.value.response.headers["x-trimtab-reason"]


async def test_a_stream_that_breaks_raises_in_the_client(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="mock", messages=MESSAGES, stream=True, extra_headers=ask(tokens=6, cut_at=300)
    )
    with pytest.raises(openai.APIConnectionError):
        async for _ in stream:
            pass


async def test_a_full_queue_is_an_overload_that_says_when_to_come_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = ("--set", "queue.max_requests=1", "--set", "setpoints.max_batch_size={initial: 1, min: 1, max: 1}")
    with mock_upstream() as mock:
        folder = tmp_path_factory.mktemp("full")
        with Trimtab.serve(folder, "--upstream", mock, *settings) as running:
            async with openai.AsyncOpenAI(base_url=f"{running.proxy}/v1", api_key="x", max_retries=0) as client:

                async def chat() -> Any:
                    return await client.chat.completions.create(
                        model="mock", messages=MESSAGES, extra_headers=ask(delay=0.5)
                    )

                answers = await asyncio.gather(*[chat() for _ in range(6)], return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(refused) == 4, "one runs and one waits"
    for error in refused:
        assert isinstance(error, openai.InternalServerError)
        assert error.status_code == 503
        assert int(error.response.headers["retry-after"]) >= 1
        assert error.response.headers["x-trimtab-reason"]
        assert error.body, "an error object of OpenAI's shape"
