"""Text completions: prompts in every form, echo, logprobs, streams."""

from __future__ import annotations

from typing import Any

import pytest

from backend.api.logprobs import TextOffsets
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import EOS, ByteTokenizer
from tests.backend.api.sse import events

TEXT = "/v1/completions"


async def stream(worker: Worker, **body: Any) -> list[Any]:
    async with worker.client.post(TEXT, json={"stream": True, **body}) as response:
        assert response.status == 200
        return events(await response.text())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        (["a", [98]], [[97], [98]]),
    ],
)
async def test_prompts_of_every_form_reach_the_engine_in_order(
    worker: Worker, prompt: Any, expected: list[list[int]]
) -> None:
    status, answer = await worker.post(TEXT, prompt=prompt)
    assert status == 200
    by_id = sorted(worker.engine.requests, key=lambda request: request.id)
    assert [request.prompt_token_ids for request in by_id] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))


async def test_answer_has_openais_shape_and_sixteen_tokens_by_default(worker: Worker) -> None:
    worker.engine.script = lambda request, index: "x" * 40
    _, answer = await worker.post(TEXT, prompt="ab")
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "x" * 16, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert answer["usage"]["completion_tokens"] == 16


async def test_choices_of_all_prompts_are_numbered_prompt_by_prompt(worker: Worker) -> None:
    worker.engine.script = lambda request, index: f"{bytes(request.prompt_token_ids).decode()}{index}"
    _, answer = await worker.post(TEXT, prompt=["a", "b", "c"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 12
    chunks = await stream(worker, prompt=["a", "b", "c"], n=2)
    texts = [""] * 6
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a0", "a1", "b0", "b1", "c0", "c1"]


async def test_echo_puts_the_prompt_first(worker: Worker) -> None:
    _, answer = await worker.post(TEXT, prompt=["ab", [99]], echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["abHello, world!", "cHello, world!"]
    chunks = await stream(worker, prompt="ab", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "abHello, world!"


async def test_logprobs_have_the_completions_shape_with_running_offsets(worker: Worker) -> None:
    _, answer = await worker.post(TEXT, prompt="ab", max_tokens=2, logprobs=2)
    expected = {
        "tokens": ["H", "e"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"A": -1.0, "B": -2.0}] * 2,
        "text_offset": [0, 1],
    }
    assert answer["choices"][0]["logprobs"] == expected
    chunks = await stream(worker, prompt="ab", max_tokens=2, logprobs=2)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 1]


@pytest.mark.parametrize(("skip", "offsets"), [(True, [0, 1, 1, 2, 2, 3]), (False, [0, 1, 1, 2, 7, 8])])
def test_offsets_count_the_characters_that_the_text_has_before_a_token(skip: bool, offsets: list[int]) -> None:
    """A special token that is left out has none, and the bytes of one character have one together."""
    counter = TextOffsets(ByteTokenizer(), skip_special_tokens=skip)
    assert [counter.put(token) for token in (*"aé".encode(), EOS, *b"bc")] == offsets


async def test_stream_ends_with_finish_usage_and_done(worker: Worker) -> None:
    chunks = await stream(worker, prompt=["a", "b"], max_tokens=2, stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["total_tokens"] == 6
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-2]]
    assert sorted(filter(None, reasons)) == ["length", "length"]


async def test_zero_logprobs_means_the_sampled_token_only(worker: Worker) -> None:
    _, answer = await worker.post(TEXT, prompt="ab", max_tokens=1, logprobs=0)
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{}]
    assert worker.engine.requests[0].params.logprobs == 0


async def test_prompt_that_leaves_room_for_one_token_gets_one(worker: Worker) -> None:
    status, answer = await worker.post(TEXT, prompt="x" * 511)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 511, "completion_tokens": 1}


async def test_special_tokens_begin_completions_and_are_not_added_to_rendered_chats(
    start_worker: StartWorker,
) -> None:
    """llama-cpp-python#1501, vllm#9519, vllm#27486: two BOS tokens."""

    class Begins(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return ([0] if add_special_tokens else []) + super().encode(text)

    worker = await start_worker(tokenizer=Begins())
    await worker.post(TEXT, prompt="a")
    await worker.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
    text, chat = worker.engine.requests
    assert text.prompt_token_ids == [0, 97]
    assert 0 not in chat.prompt_token_ids
