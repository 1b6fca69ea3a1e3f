from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predictor import LengthPredictor, Source


def serve(predictor: LengthPredictor, tokens: int, finish: str | None = "stop", **request: object) -> None:
    predictor.observe(predictor.predict(**{"model": "m", **request}), tokens, finish)  # type: ignore[arg-type]


def test_importing_the_facade_loads_neither_numpy_nor_sklearn() -> None:
    code = "import sys, controller.predictor; print([m for m in ('numpy', 'sklearn', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_cold_predictor_answers_the_prior_within_max_tokens() -> None:
    prediction = LengthPredictor().predict(model="m", text="hello", max_tokens=40)
    assert (prediction.p50, prediction.p90, prediction.source) == (40, 40, Source.PRIOR)


def test_the_usual_length_of_a_model_is_learned() -> None:
    predictor = LengthPredictor()
    for index in range(60):
        serve(predictor, 1000 + index % 7, text=f"{index} something else entirely")
    prediction = predictor.predict(model="m", text="never seen")
    assert prediction.source is Source.MODEL
    assert 700 < prediction.p50 < 1010


def test_the_same_prompt_again_gets_its_own_length() -> None:
    predictor = LengthPredictor()
    for index in range(60):
        serve(predictor, 1000, text=f"{index} filler")
    for _ in range(3):
        serve(predictor, 10, text="yes or no?")
    prediction = predictor.predict(model="m", text="yes or no?")
    assert prediction.source is Source.PROMPT
    assert prediction.p50 < 40


def test_a_template_is_recognised_by_system_prompt_group_or_opening() -> None:
    system = {"messages": [{"role": "system", "content": "You classify."}, {"role": "user", "content": "x"}]}
    opening = "Classify the following ticket into one of these classes: "
    for request in ({"params": system}, {"prefix_group": 7}, {"text": opening}):
        predictor = LengthPredictor()
        for index in range(40):
            serve(predictor, 900, text=f"{index} filler")
            varied = {**request, "text": f"{request.get('text', '')}{index} ticket text"}
            serve(predictor, 4, **varied)
        prediction = predictor.predict(model="m", **{**request, "text": f"{request.get('text', '')}new"})
        assert prediction.source is Source.TEMPLATE, request
        assert prediction.p50 < 20, request


@pytest.mark.parametrize("finish", ["abort", "cancelled", "error"])
def test_aborted_answers_teach_nothing(finish: str) -> None:
    predictor = LengthPredictor()
    before = predictor.predict(model="m", text="a")
    for _ in range(30):
        serve(predictor, 1, finish, text="a")
    assert predictor.predict(model="m", text="a") == before


def test_an_outcome_counts_once() -> None:
    predictor = LengthPredictor()
    prediction = predictor.predict(model="m", text="a")
    for _ in range(5):
        predictor.observe(prediction, 10, "stop")
    assert predictor.calibration()["all"]["n"] == 1


def test_answers_cut_short_do_not_pull_the_length_down() -> None:
    predictor = LengthPredictor()
    for index in range(100):
        serve(predictor, 800, text=f"{index} filler")
    before = predictor.predict(model="m", text="q").p50
    for index in range(300):
        serve(predictor, 16, "length", text=f"{index} cut", max_tokens=16)
    assert predictor.predict(model="m", text="q").p50 == before


def test_the_ninth_decile_holds_nine_times_in_ten_after_correction() -> None:
    predictor = LengthPredictor()
    state, held = 1, 0
    for index in range(3000):
        state = state * 48271 % 2147483647
        tokens = int(math.exp(5 + 1.5 * math.sin(state)))
        prediction = predictor.predict(model="m", text=f"{index}")
        held += index >= 1000 and tokens <= prediction.p90
        predictor.observe(prediction, tokens, "stop")
    assert 0.88 <= held / 2000 <= 0.92


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=80),
    max_tokens=st.one_of(st.none(), st.integers(-5, 5000)),
    params=st.one_of(st.none(), st.dictionaries(st.text(max_size=9), st.one_of(st.none(), st.text(max_size=3)))),
    outcomes=st.lists(st.integers(-3, 10**7), max_size=12),
)
def test_any_request_gets_finite_ordered_numbers_within_its_bound(
    text: str, max_tokens: int | None, params: dict[str, object] | None, outcomes: list[int]
) -> None:
    predictor = LengthPredictor()
    for tokens in [*outcomes, 1]:
        prediction = predictor.predict(model="m", text=text, max_tokens=max_tokens, params=params)
        assert 0 <= prediction.p50 <= prediction.p90 < math.inf
        if max_tokens is not None and max_tokens > 0:
            assert prediction.p90 <= max_tokens
        predictor.observe(prediction, tokens, None)
    assert predictor.failures == 0


def test_nonsense_never_raises() -> None:
    predictor = LengthPredictor()
    for request in (
        {"text": None},
        {"params": 5},
        {"params": {"messages": [3]}},
        {"max_tokens": "many"},
        {"model": None, "tenant": 3},
        {"text": "\ud800 lone surrogate"},
        {"params": {"temperature": "hot", "stop": 3, "tools": object()}},
    ):
        prediction = predictor.predict(**{"model": "m", "text": "t", **request})  # type: ignore[arg-type]
        predictor.observe(prediction, 10, "stop")
        assert math.isfinite(prediction.p90)
