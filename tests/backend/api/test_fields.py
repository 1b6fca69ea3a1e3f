"""Fields accept exactly their range, whatever JSON holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.api.body import parse_body
from backend.api.errors import InvalidRequest
from backend.api.messages import read_messages
from backend.api.sampling import SAMPLING, read_sampling

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
NAMES = [field.name for field in SAMPLING] + ["stop_token_ids"]


def outcome(read: Callable[[], Any]) -> tuple[Any, InvalidRequest | None]:
    try:
        return read(), None
    except InvalidRequest as error:
        return None, error


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_sampling_is_read_or_refused_by_name_whatever_is_sent(body: dict[str, object]) -> None:
    body = parse_body(orjson.dumps(body))
    params, error = outcome(
        lambda: read_sampling(
            body,
            vocab_size=100,
            defaults={},
            logprobs=None,
            default_max_tokens=16,
            room=50,
            max_model_len=64,
        )
    )
    if error is not None:
        assert error.param in NAMES
        assert f"'{error.param}'" in error.message
    else:
        assert 1 <= params.max_tokens <= 50
        assert 0 <= params.min_tokens <= params.max_tokens
        assert 0 <= params.temperature <= 2
        assert 0 < params.top_p <= 1
        assert params.top_k >= 0
        assert 0 <= params.min_p <= 1
        assert all(0 <= token < 100 for token in (*params.stop_token_ids, *params.logit_bias))
        assert all(params.stop)


@settings(max_examples=150)
@given(JSON | st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), JSON)))
def test_messages_are_read_or_refused_by_path_whatever_is_sent(value: object) -> None:
    messages, error = outcome(lambda: read_messages(value))
    if error is not None:
        assert error.param is not None
        assert error.param.startswith("messages")
    else:
        assert all(isinstance(message["content"], str) for message in messages)


@given(st.binary(max_size=64))
def test_any_bytes_are_an_object_or_a_400(raw: bytes) -> None:
    body, error = outcome(lambda: parse_body(raw))
    assert isinstance(body, dict) if error is None else error.code == "invalid_json"
