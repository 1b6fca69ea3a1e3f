"""Chat completions: OpenAI's shapes, streamed and not, and what reaches the engine."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from backend.engine.request import GenerationRequest
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import ByteTokenizer, FakeEngine
from tests.backend.api.sse import events

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def stream(worker: Worker, **body: Any) -> list[Any]:
    async with worker.client.post(CHAT, json={"messages": HELLO, "stream": True, **body}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return events(await response.text())


async def test_answer_has_openais_shape(worker: Worker) -> None:
    status, answer = await worker.post(CHAT, messages=HELLO)
    assert status == 200
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["created"], answer["model"]) == ("chat.completion", 1_700_000_001, "fake")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 22,
        "completion_tokens": 13,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_stream_is_role_then_deltas_then_finish_then_done(worker: Worker) -> None:
    chunks = await stream(worker, max_tokens=3)
    assert chunks[-1] == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "H"},
        {"content": "e"},
        {"content": "l"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "length"]
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_include_usage_adds_one_chunk_without_choices_before_done(worker: Worker) -> None:
    chunks = await stream(worker, max_tokens=2, stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 2
    assert chunks[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert all(chunk["usage"] is None for chunk in chunks[:-2])


async def test_streamed_choices_are_interleaved_by_index_and_add_up(worker: Worker) -> None:
    worker.engine.script = lambda request, index: f"choice {index}" + "!" * index
    chunks = await stream(worker, n=3, stream_options={"include_usage": True})
    texts = {0: "", 1: "", 2: ""}
    for chunk in chunks[:-2]:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "choice 0", 1: "choice 1!", 2: "choice 2!!"}
    order = [chunk["choices"][0]["index"] for chunk in chunks[:-2]]
    assert order[:6] == [0, 1, 2, 0, 1, 2]
    finished = [chunk["choices"][0]["index"] for chunk in chunks[:-2] if chunk["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]
    assert chunks[-2]["usage"]["completion_tokens"] == sum(map(len, texts.values()))


async def test_prompt_is_counted_once_for_all_choices(worker: Worker) -> None:
    _, one = await worker.post(CHAT, messages=HELLO)
    _, three = await worker.post(CHAT, messages=HELLO, n=3)
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]


async def test_logprobs_have_the_chat_shape(worker: Worker) -> None:
    _, answer = await worker.post(CHAT, messages=HELLO, max_tokens=1, logprobs=True, top_logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H",
                "logprob": -0.5,
                "bytes": [72],
                "top_logprobs": [
                    {"token": "A", "logprob": -1.0, "bytes": [65]},
                    {"token": "B", "logprob": -2.0, "bytes": [66]},
                ],
            }
        ],
        "refusal": None,
    }


async def test_streamed_logprobs_equal_the_unstreamed(worker: Worker) -> None:
    body = {"logprobs": True, "top_logprobs": 1, "max_tokens": 4}
    _, answer = await worker.post(CHAT, messages=HELLO, **body)
    chunks = await stream(worker, **body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert [entry for part in parts if part for entry in part["content"]] == answer["choices"][0]["logprobs"][
        "content"
    ]


async def test_a_token_that_is_half_a_character_is_shown_as_bytes(worker: Worker) -> None:
    worker.engine.script = lambda request, index: "é"
    _, answer = await worker.post(CHAT, messages=HELLO, max_tokens=1, logprobs=True)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("bytes:\\xc3", [0xC3])


async def test_sampling_parameters_reach_the_engine(worker: Worker) -> None:
    await worker.post(
        CHAT,
        messages=HELLO,
        n=2,
        max_completion_tokens=7,
        max_tokens=99,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=1,
        logit_bias={"5": -100},
        seed=-3,
        stop="x",
        stop_token_ids=[7],
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        cache_salt="tenant-a",
    )
    (request,) = worker.engine.requests
    params = request.params
    assert (request.n, request.cache_salt) == (2, "tenant-a")
    assert (params.max_tokens, params.min_tokens) == (7, 2)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, -1, 1)
    assert (params.logit_bias, params.seed, params.stop, params.stop_token_ids) == ({5: -100}, -3, ("x",), (7,))
    assert (params.include_stop, params.ignore_eos, params.skip_special_tokens) == (True, True, False)
    assert params.logprobs is None


async def test_hint_headers_reach_the_engine(worker: Worker) -> None:
    headers = {
        "x-trimtab-class-slack-ms": "2500",
        "x-trimtab-predicted-tokens": "41.5",
        "x-trimtab-tenant": "acme",
    }
    async with worker.client.post(CHAT, json={"messages": HELLO}, headers=headers):
        pass
    (request,) = worker.engine.requests
    assert (request.class_slack, request.predicted_tokens, request.tenant) == (2.5, 41.5, "acme")


async def test_output_is_bounded_by_the_room_the_prompt_leaves(worker: Worker) -> None:
    await worker.post(CHAT, messages=HELLO)
    await worker.post(CHAT, messages=HELLO, max_tokens=511)
    assert [request.params.max_tokens for request in worker.engine.requests] == [512 - 22, 512 - 22]


async def test_messages_pass_through_the_template_once(worker: Worker) -> None:
    await worker.post(
        CHAT,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    prompt = bytes(worker.engine.requests[0].prompt_token_ids).decode()
    assert prompt == "system: be brief\nuser: a\nb\nassistant:"


async def test_long_prompts_are_tokenised_off_the_event_loop(start_worker: StartWorker) -> None:
    threads: list[int] = []

    class Watched(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            threads.append(threading.get_ident())
            return super().encode(text, add_special_tokens)

    worker = await start_worker(tokenizer=Watched(), max_model_len=10_000)
    for text in ("abc", "abc " * 1000):
        await worker.post("/v1/completions", prompt=text)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]
    assert bytes(worker.engine.requests[1].prompt_token_ids).decode() == "abc " * 1000


@pytest.mark.parametrize("given", ["trace-7", "", "two words", "x" * 200])
async def test_request_id_is_kept_when_sane_and_made_otherwise(worker: Worker, given: str) -> None:
    async with worker.client.get("/version", headers={"x-request-id": given}) as response:
        kept = response.headers["x-request-id"]
    assert kept == given if given == "trace-7" else len(kept) == 32


async def test_stop_string_is_reported(worker: Worker) -> None:
    from backend.engine.request import Delta, FinishReason, Usage

    class Stops(FakeEngine):
        async def _deltas(self, request: GenerationRequest) -> Any:
            yield Delta(request.id, 0, "The ", (1,))
            yield Delta(
                request.id, 0, "", (2,), finish_reason=FinishReason.STOP, stop_reason="capital", usage=Usage(3, 2)
            )

    worker.service.engine = Stops()
    _, answer = await worker.post(CHAT, messages=HELLO, stop=["capital"])
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "The ",
        "stop",
        "capital",
    )
    chunks = await stream(worker, stop=["capital"])
    assert chunks[-2]["choices"][0]["stop_reason"] == "capital"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}},
            {"type": "integer"},
        ),
        ({"structured_outputs": {"json": {"type": "string"}}}, {"type": "string"}),
        ({"guided_json": {"type": "boolean"}}, {"type": "boolean"}),
    ],
)
async def test_demanded_json_reaches_the_engine_as_a_grammar(
    worker: Worker, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    pytest.importorskip("llguidance")
    status, _ = await worker.post(CHAT, messages=HELLO, **body)
    assert status == 200
    grammar = worker.engine.requests[0].grammar
    assert grammar is not None
    schema = json.loads(grammar)["grammars"][0]["json_schema"]
    assert {key: value for key, value in schema.items() if key != "x-guidance"} == expected


async def test_free_text_has_no_grammar(worker: Worker) -> None:
    await worker.post(CHAT, messages=HELLO, response_format={"type": "text"})
    assert worker.engine.requests[0].grammar is None
