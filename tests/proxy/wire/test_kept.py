"""Where ids stand: in paths, requests and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.kept import Answered, DocumentTap, EventsTap, answered, keeps, named, place_of, proven


@pytest.mark.parametrize(
    ("method", "path", "collection", "id", "creates"),
    [
        ("POST", "/v1/responses", "responses", "", True),
        ("POST", "/responses", "responses", "", True),
        ("GET", "/v1/responses/resp_1", "responses", "resp_1", False),
        ("POST", "/v1/responses/resp_1/cancel", "responses", "resp_1", False),
        ("DELETE", "/gateway/v1/conversations/c1/items/m1", "conversations", "c1", False),
        ("GET", "/openai/v1/files/f1/content", "files", "f1", False),
        ("GET", "/openai/files/f1", "files", "f1", False),
        ("GET", "/v1/containers/c1/files/f1", "containers", "c1", False),
        ("POST", "/v1/threads/runs", "threads", "", True),
        ("POST", "/v1/threads/t1/runs/r1/submit_tool_outputs", "threads", "t1", False),
        ("GET", "/v1/messages/batches/b1/results", "messages/batches", "b1", False),
        ("POST", "/v1/messages", "messages", "", False),
        ("POST", "/v1/chat/completions", "chat/completions", "", True),
        ("GET", "/v1/chat/completions/c1/messages", "chat/completions", "c1", False),
        ("GET", "/v1/fine_tuning/jobs/j1/events", "fine_tuning/jobs", "j1", False),
    ],
)
def test_paths_that_know_ids(method: str, path: str, collection: str, id: str, creates: bool) -> None:
    place = place_of(method, path)
    assert place is not None
    assert (place.collection, place.id, place.creates) == (collection, id, creates)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("GET", "/v1/models/files"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("GET", "/files/report1"),
        ("GET", "/static/batches/1"),
        ("POST", "/predict"),
        ("GET", "/v1/" + "x/" * 600 + "files/1"),
    ],
)
def test_paths_that_do_not(method: str, path: str) -> None:
    assert place_of(method, path) is None


def refs(path: str, payload: Any) -> tuple[str, ...]:
    place = place_of("POST", path)
    assert place is not None
    return named(place, payload, json.dumps(payload).encode())


def test_what_a_request_refers_to_the_most_telling_first() -> None:
    payload = {
        "input": [{"file_id": "f1", "text": 'say "file_id": "no"'}, {"text": '{"file_id":"no"}'}],
        "conversation": {"id": "c1"},
        "previous_response_id": "r1",
        "tools": [{"vector_store_ids": ["v1", "v2"]}, {"container": {"type": "auto"}}],
    }
    assert refs("/v1/responses", payload) == ("r1", "c1", "f1", "v1", "v2")
    assert refs("/v1/responses/r2/cancel", {}) == ("r2",)
    assert refs("/v1/chat/completions", {"messages": [{"content": "hi", "tool_call_id": "call_1"}]}) == ()
    assert len(refs("/v1/vector_stores", {"file_ids": [f"f{number}" for number in range(500)]})) == 16


def test_only_what_looks_minted_is_proven_by_an_answer() -> None:
    place = place_of("POST", "/v1/responses/input_tokens")
    assert place is not None
    assert proven(place, {"previous_response_id": "resp_1", "conversation": "main"}) == ("resp_1",)


@pytest.mark.parametrize(
    ("path", "payload", "kept"),
    [
        ("/v1/responses", {}, True),
        ("/v1/responses", {"store": None}, True),
        ("/v1/responses", {"store": False}, False),
        ("/v1/chat/completions", {}, False),
        ("/v1/chat/completions", {"store": True}, True),
        ("/v1/messages", {"store": True}, False),
        ("/v1/batches", None, True),
    ],
)
def test_what_will_be_kept(path: str, payload: Any, kept: bool) -> None:
    place = place_of("POST", path)
    assert place is not None
    assert keeps(place, payload) is kept


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"id":"resp_1","metadata":{"file":"no","file_id":"no"}}', Answered("resp_1", ())),
        (b'{"object":"batch","output_file_id":"f1","error_file_id":null,"id":"b1"}', Answered("b1", ("f1",))),
        (b'{"id":"u1","file":{"id":"f1"},"conversation":{"id":"c1"}}', Answered("u1", ("c1", "f1"))),
        (b'{"id":7}', None),
        (b"[1]", None),
        (b"no JSON", None),
        (b"", None),
        (b'{"a":"\\"id\\":\\"no\\"","id":"yes","rest":"' + b"x" * 70_000 + b'"}', Answered("yes", ())),
        (b'{"a":{"id":"no"},"id":"late","rest":"' + b"x" * 70_000 + b'"}', None),
    ],
)
def test_what_an_answer_says(body: bytes, ids: Answered | None) -> None:
    assert answered(body) == ids
    found: list[Answered] = []
    tap = DocumentTap(found.append)
    for start in range(0, len(body), 1000):
        tap.feed(body[start : start + 1000])
    tap.close()
    tap.close()
    assert found == ([] if ids is None else [ids])


def event(data: dict[str, Any]) -> bytes:
    return b"event: %b\r\ndata: %b\r\n\r\n" % (str(data.get("type")).encode(), json.dumps(data).encode())


STREAMS = [
    (event({"type": "response.created", "response": {"id": "r1", "metadata": {"id": "no"}}}), "r1"),
    (event({"response": {"object": "response", "conversation": {"id": "no"}, "id": "r1"}}), "r1"),
    (event({"type": "response.created", "response": {"id": "r1", "instructions": "x" * 90_000}}), "r1"),
    (event({"tools": [{"response": {"id": "no"}}], "response": {"tools": [{"response": {"id": "no"}}], "id": "r1"}}),
     "r1"),
    (event({"type": "ping"}) + event({"delta": "x", "item_id": "m", "item": {"id": "no"}})
     + event({"type": "response.completed", "response": {"status": "completed", "id": "r1"}}), "r1"),
    (event({"object": "thread.run", "id": "run_1", "thread_id": "t1"}), "run_1"),
    (event({"delta": "no id"}) * 50, ""),
]  # fmt: skip


@given(st.sampled_from(STREAMS), st.integers(1, 5000))
def test_the_id_of_a_stream_is_found_however_it_is_cut(stream: tuple[bytes, str], size: int) -> None:
    data, id = stream
    found: list[Answered] = []
    tap = EventsTap(found.append)
    for start in range(0, len(data), size if len(data) < 5000 else size + 500):
        tap.feed(data[start : start + (size if len(data) < 5000 else size + 500)])
    assert [ids.made for ids in found] == ([id] if id else [])
