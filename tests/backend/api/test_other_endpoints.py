"""Embeddings, models, tokenize, version."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import Counting


@pytest.mark.parametrize("value", ["ab", ["ab"], [97, 98], [[97, 98]]])
async def test_embedding_inputs_of_every_form(worker: Worker, value: Any) -> None:
    status, answer = await worker.post("/v1/embeddings", input=value)
    assert status == 200
    assert answer["data"] == [{"object": "embedding", "index": 0, "embedding": [2.0, 0.0, 0.5]}]
    assert answer["usage"] == {"prompt_tokens": 2, "total_tokens": 2}


async def test_base64_embeddings_are_little_endian_floats_in_order(worker: Worker) -> None:
    _, answer = await worker.post("/v1/embeddings", input=["a", "bcd"], encoding_format="base64", pooling="last")
    decoded = [struct.unpack("<3f", base64.b64decode(entry["embedding"])) for entry in answer["data"]]
    assert decoded == [(1.0, 1.0, 0.5), (3.0, 1.0, 0.5)]
    assert [entry["index"] for entry in answer["data"]] == [0, 1]


async def test_many_embeddings_leave_the_engine_room_between_them(worker: Worker) -> None:
    sizes = [400, 400, 400, 10, 500]
    _, answer = await worker.post("/v1/embeddings", input=["x" * size for size in sizes])
    assert [entry["embedding"][0] for entry in answer["data"]] == sizes
    assert worker.engine.embedded == [[400, 400], [400, 10, 500]]


async def test_models_lists_every_name_with_the_context_length(worker: Worker) -> None:
    async with worker.client.get("/v1/models") as response:
        answer = await response.json()
    assert [card["id"] for card in answer["data"]] == ["fake", "alias"]
    assert {card["max_model_len"] for card in answer["data"]} == {512}
    async with worker.client.get("/v1/models/alias") as response:
        assert (await response.json())["root"] == "fake"


async def test_tokenize_and_detokenize_are_inverse(worker: Worker) -> None:
    text = "naïve 🙂"
    _, answer = await worker.post("/tokenize", prompt=text, return_token_strs=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == len(text.encode())
    assert answer["max_model_len"] == 512
    _, back = await worker.post("/detokenize", tokens=answer["tokens"])
    assert back == {"prompt": text}


async def test_tokenize_counts_what_chat_would_send(worker: Worker) -> None:
    messages = [{"role": "user", "content": "hello"}]
    _, answer = await worker.post("/tokenize", messages=messages)
    await worker.post("/v1/chat/completions", messages=messages)
    assert answer["tokens"] == worker.engine.requests[0].prompt_token_ids


@pytest.mark.parametrize("param", ["prompt", "messages"])
@pytest.mark.parametrize(("size", "counted"), [(99, True), (1600, True), (1602, False)])
async def test_text_is_counted_up_to_a_multiple_of_the_context_and_refused_untokenised_beyond(
    start_worker: StartWorker, param: str, size: int, counted: bool
) -> None:
    """The tokenizer's bound is two bytes a token: 1602 bytes are at least 801 tokens."""
    tokenizer = Counting()
    worker = await start_worker(tokenizer=tokenizer, max_model_len=100)
    around = len("user: \nassistant:") if param == "messages" else 0
    text = "x" * (size - around)
    status, answer = await worker.post(
        "/tokenize", **{param: text if param == "prompt" else [{"role": "user", "content": text}]}
    )
    assert tokenizer.texts == int(counted)
    if counted:
        assert (status, answer["count"], len(answer["tokens"])) == (200, size, size)
        return
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", param)
    assert answer["error"]["message"] == (
        f"Texts of up to 800 tokens are counted, 8 times this model's context, but '{param}' has at least 801."
    )


async def test_long_texts_are_spelled_and_made_as_short_ones_are(worker: Worker) -> None:
    text = "naïve 🙂 " * 500
    status, answer = await worker.post("/tokenize", prompt=text, return_token_strs=True)
    assert (status, len(answer["token_strs"])) == (200, len(text.encode()))
    assert answer["token_strs"][0] == "n"
    _, back = await worker.post("/detokenize", tokens=answer["tokens"])
    assert back == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
    ],
)
async def test_wrong_tokenize_requests_name_the_parameter(
    worker: Worker, path: str, body: dict[str, Any], param: str
) -> None:
    status, answer = await worker.post(path, **body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_models_own_sampling_defaults_hold_unless_the_request_says_otherwise(start_worker: StartWorker) -> None:
    worker = await start_worker(sampling_defaults={"temperature": 0.6, "top_k": 20.0})
    await worker.post("/v1/completions", prompt="a")
    await worker.post("/v1/completions", prompt="a", temperature=0)
    seen = [(request.params.temperature, request.params.top_k) for request in worker.engine.requests]
    assert seen == [(0.6, 20), (0.0, 20)]


async def test_model_without_a_chat_template_points_to_completions(worker: Worker) -> None:
    worker.service.model.tokenizer.chat_template = None  # type: ignore[misc]
    status, answer = await worker.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    assert status == 400
    assert "/v1/completions" in answer["error"]["message"]


async def test_version(worker: Worker) -> None:
    async with worker.client.get("/version") as response:
        assert set(await response.json()) == {"version"}
