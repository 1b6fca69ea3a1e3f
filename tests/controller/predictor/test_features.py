from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predictor.features import LEXICAL, REQUEST, lexical, request


def named(text: str) -> dict[str, float]:
    return dict(zip(LEXICAL, lexical(text), strict=True))


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300))
def test_any_text_gives_one_finite_or_missing_number_per_feature(text: str) -> None:
    values = lexical(text)
    assert len(values) == len(LEXICAL)
    assert all(isinstance(value, float) and not math.isinf(value) for value in values)


def test_no_text_is_all_missing() -> None:
    assert all(math.isnan(value) for value in lexical(""))


def test_only_the_start_and_the_end_of_a_long_prompt_are_looked_at() -> None:
    start, end = "Summarize this. " + "lorem " * 500, " ipsum" * 200 + " Thanks?"
    plain = start + "x" * 1_000_000 + end
    loaded = start + 'code "why": list?\n'.ljust(1_000_000, "x") + end
    assert lexical(plain) == lexical(loaded)


@pytest.mark.parametrize(
    ("text", "feature", "value"),
    [
        ("How many moons has Mars?", "quantity", 1.0),
        ("How do tides work?", "quantity", 0.0),
        ("How do tides work?", "ends_question", 1.0),
        ("Name 7 rivers and 12 lakes.", "numbers", 2.0),
        ("Name 7 rivers and 12 lakes.", "largest_number", 12.0),
        ("It was founded in 2024.", "largest_number", 0.0),
        ("Say it in 50 words", "asked_words", math.log1p(50)),
        ("Say it in two short sentences", "asked_words", math.log1p(40)),
        ("A single paragraph please", "asked_words", math.log1p(90)),
        ("Line 1\nLine 2\n", "newlines", 2.0),
        ("Write CODE, code and c++!", "code", 3.0),
    ],
)
def test_what_a_prompt_says_is_read(text: str, feature: str, value: float) -> None:
    assert named(text)[feature] == pytest.approx(value)


def test_courtesies_do_not_hide_the_verb() -> None:
    assert named("Could you please write a poem")["verb"] == named("Write a poem")["verb"]


def test_request_fields_are_read_and_absent_ones_are_missing() -> None:
    params = {"temperature": 0.5, "stop": ["a", "b"], "response_format": {"type": "json_object"}, "tools": [{}]}
    got = dict(zip(REQUEST, request(params, 99, 7, 13.0), strict=True))
    assert got == {
        "log_prompt_tokens": pytest.approx(math.log(100)),
        "log_max_tokens": pytest.approx(math.log(8)),
        "temperature": 0.5,
        "stops": 2.0,
        "json": 1.0,
        "tools": 1.0,
        "hour": 4.0,
    }
    bare = dict(zip(REQUEST, request(None, 0, None, 0.0), strict=True))
    assert math.isnan(bare["log_prompt_tokens"])
    assert math.isnan(bare["log_max_tokens"])
    assert math.isnan(bare["temperature"])


def test_nonsense_in_the_body_is_missing_not_an_error() -> None:
    got = request({"temperature": "hot", "stop": 5, "tools": "hammer"}, -3, -1, 0.0)
    assert len(got) == len(REQUEST)
