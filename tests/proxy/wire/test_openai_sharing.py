"""The OpenAI wire format: which requests may share a call, and which travel alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.wire.support import COMPLETIONS, EMBEDDINGS, parse


def key(path: str, body: Any) -> Any:
    return parse(path, body).compat_key


class TestSharing:
    def test_what_differs_in_input_alone_may_share_a_call(self) -> None:
        forms: list[Any] = ["a", "b", ["c", "d"]]
        keys = {key(EMBEDDINGS, {"model": "m", "input": form}) for form in forms}
        assert len(keys) == 1
        assert None not in keys

    def test_the_order_of_fields_does_not_matter_for_sharing(self) -> None:
        assert key(EMBEDDINGS, b'{"model":"m","user":"u","dimensions":3,"input":"a"}') == key(
            EMBEDDINGS, b'{"dimensions":3,"input":"b","user":"u","model":"m"}'
        )

    def test_texts_and_tokens_never_share_a_call(self) -> None:
        texts, tokens = key(EMBEDDINGS, {"input": "a"}), key(EMBEDDINGS, {"input": [1, 2]})
        assert texts is not None
        assert tokens is not None
        assert texts != tokens

    @pytest.mark.parametrize(
        "value", ["", [], [""], ["a", ""], ["a", 1], [1, "a"], [[1], []], [[]], [[["x"]]], [1.5], [True], None, {}, 3]
    )
    @pytest.mark.parametrize(("path", "field"), [(EMBEDDINGS, "input"), (COMPLETIONS, "prompt")])
    def test_inputs_we_do_not_understand_travel_alone(self, path: str, field: str, value: Any) -> None:
        assert key(path, {"model": "m", field: value}) is None

    @pytest.mark.parametrize(
        "extra",
        [
            {"stream": True},
            {"n": 2},
            {"best_of": 3},
            {"seed": 1},
            {"suffix": "x"},
            {"prompt_embeds": "x"},
            {"use_beam_search": True},
            {"stream": True, "stream_options": {"include_usage": True}},
        ],
    )
    def test_completions_that_a_list_would_change_travel_alone(self, extra: dict[str, Any]) -> None:
        assert key(COMPLETIONS, {"model": "m", "prompt": "a", **extra}) is None

    @pytest.mark.parametrize("extra", [{}, {"n": 1}, {"best_of": 1}, {"n": None}, {"seed": None}, {"echo": True}])
    def test_completions_that_a_list_leaves_as_they_are_may_share(self, extra: dict[str, Any]) -> None:
        assert key(COMPLETIONS, {"model": "m", "prompt": "a", **extra}) is not None

    def test_integers_that_may_have_been_rounded_are_never_taken_for_equal(self) -> None:
        assert key(EMBEDDINGS, b'{"input":"a","x":[{"y":36893488147419103232}]}') is None

    def test_the_query_string_keeps_calls_apart(self) -> None:
        assert key(EMBEDDINGS, {"input": "a"}) != key(EMBEDDINGS + "?api-version=2", {"input": "a"})

    json_values = st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=5),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=5,
    )
    fields = st.dictionaries(
        st.sampled_from(["user", "dimensions", "encoding_format", "x", "é"]), json_values, max_size=4
    )

    @given(one=fields, other=fields, models=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")))
    @settings(max_examples=150, deadline=None)
    def test_calls_share_a_key_only_if_all_but_their_input_is_equal(
        self, one: dict[str, Any], other: dict[str, Any], models: tuple[str, str]
    ) -> None:
        first = key(EMBEDDINGS, {"model": models[0], **one, "input": "a"})
        second = key(EMBEDDINGS, {"model": models[1], **other, "input": "b"})
        same = orjson.dumps([models[0], one], option=orjson.OPT_SORT_KEYS) == orjson.dumps(
            [models[1], other], option=orjson.OPT_SORT_KEYS
        )
        if first is not None and second is not None:
            assert (first == second) == same
        elif same:
            assert first is None
            assert second is None
