from __future__ import annotations

import gc
import json
import logging
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import controller.predictor.predictor as facade
from controller.predictor import LengthPredictor, Source
from controller.predictor.model import parse_model
from controller.predictor.predictor import FEATURES
from controller.predictor.state import MODEL, VERSION, write

from .support import LONG, SHORT, Clock, Never, constant_model, make
from .support import serve as traffic


def serve(predictor: LengthPredictor, tokens: int, finish: str | None = "stop", **request: object) -> None:
    predictor.observe(predictor.predict(**{"model": "m", **request}), tokens, finish)  # type: ignore[arg-type]


def test_importing_the_facade_loads_neither_numpy_nor_sklearn() -> None:
    code = "import sys, controller.predictor; print([m for m in ('numpy', 'sklearn', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_cold_predictor_answers_the_prior_within_max_tokens() -> None:
    prediction = LengthPredictor(learn=False).predict(model="m", text="hello", max_tokens=40)
    assert (prediction.p50, prediction.p90, prediction.source) == (40, 40, Source.PRIOR)


def test_the_usual_length_of_a_model_is_learned() -> None:
    predictor = LengthPredictor(learn=False)
    for index in range(60):
        serve(predictor, 1000 + index % 7, text=f"{index} something else entirely")
    prediction = predictor.predict(model="m", text="never seen")
    assert prediction.source is Source.MODEL
    assert 700 < prediction.p50 < 1010


def test_the_same_prompt_again_gets_its_own_length() -> None:
    predictor = LengthPredictor(learn=False)
    for index in range(100):
        serve(predictor, 1000, text=f"{index % 40} filler")
    for _ in range(3):
        serve(predictor, 10, text="yes or no?")
    prediction = predictor.predict(model="m", text="yes or no?")
    assert prediction.source is Source.PROMPT
    assert prediction.p50 < 40


def test_a_template_is_recognised_by_system_prompt_group_or_opening() -> None:
    system = {"messages": [{"role": "system", "content": "You classify."}, {"role": "user", "content": "x"}]}
    opening = "Classify the following ticket into one of these classes: "
    for request in ({"params": system}, {"prefix_group": 7}, {"text": opening}):
        predictor = LengthPredictor(learn=False)
        for index in range(60):
            serve(predictor, 900, text=f"{index} filler")
            varied = {**request, "text": f"{request.get('text', '')}{index} ticket text"}
            serve(predictor, 4, **varied)
        prediction = predictor.predict(model="m", **{**request, "text": f"{request.get('text', '')}new"})
        assert prediction.source is Source.TEMPLATE, request
        assert prediction.p50 < 20, request


@pytest.mark.parametrize("finish", ["abort", "cancelled", "error"])
def test_aborted_answers_teach_nothing(finish: str) -> None:
    predictor = LengthPredictor(learn=False)
    before = predictor.predict(model="m", text="a")
    for _ in range(30):
        serve(predictor, 1, finish, text="a")
    assert predictor.predict(model="m", text="a") == before


def test_what_is_learned_gives_the_collector_nothing_to_walk() -> None:
    predictor = make(Clock(), Never, min_rows=10**6)
    for index in range(600):
        serve(predictor, index, text=f"{index} and something that makes an opening, so that a template is known")
    gc.collect()
    before = len(gc.get_objects())
    for index in range(600, 1600):
        serve(predictor, index, text=f"{index} and something that makes an opening, so that a template is known")
    assert len(gc.get_objects()) - before < 200


def test_an_outcome_counts_once() -> None:
    predictor = LengthPredictor(learn=False)
    prediction = predictor.predict(model="m", text="a")
    for _ in range(5):
        predictor.observe(prediction, 10, "stop")
    assert predictor.calibration()["all"]["n"] == 1


def test_answers_cut_short_do_not_pull_the_length_down() -> None:
    predictor = LengthPredictor(learn=False)
    for index in range(100):
        serve(predictor, 800, text=f"{index} filler")
    before = predictor.predict(model="m", text="q").p50
    for index in range(300):
        serve(predictor, 16, "length", text=f"{index} cut", max_tokens=16)
    assert predictor.predict(model="m", text="q").p50 == before


def test_the_ninth_decile_holds_nine_times_in_ten_after_correction() -> None:
    predictor = LengthPredictor(learn=False)
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
    predictor = LengthPredictor(learn=False)
    for tokens in [*outcomes, 1]:
        prediction = predictor.predict(model="m", text=text, max_tokens=max_tokens, params=params)
        assert 0 <= prediction.p50 <= prediction.p90 < math.inf
        if max_tokens is not None and max_tokens > 0:
            assert prediction.p90 <= max_tokens
        predictor.observe(prediction, tokens, None)
    assert predictor.failures == 0


def test_nonsense_never_raises() -> None:
    predictor = LengthPredictor(learn=False)
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


def trained() -> tuple[LengthPredictor, Clock]:
    clock = Clock()
    predictor = make(clock, min_rows=400, rows=10**9)
    traffic(predictor, clock, 402, rng=random.Random(10))
    assert predictor.calibration()["model"] is not None
    return predictor, clock


def test_what_was_learned_of_prompts_shows_in_new_ones() -> None:
    predictor, _ = trained()
    short = predictor.predict(model="m", route="chat", text=SHORT.format(123456789), prompt_tokens=12)
    long = predictor.predict(model="m", route="chat", text=LONG.format(123456789), prompt_tokens=12)
    assert short.source is long.source is Source.BOOSTED
    assert short.p50 < 10 < 300 < long.p50


def test_a_model_never_seen_gets_the_learned_order_at_once_and_its_scale_soon() -> None:
    predictor, clock = trained()
    before = predictor.predict(model="new", route="chat", text=LONG.format(123456789), prompt_tokens=12).p50
    traffic(predictor, clock, 50, rng=random.Random(11), model="new", factor=0.3)
    short = predictor.predict(model="new", route="chat", text=SHORT.format(123456789), prompt_tokens=12).p50
    long = predictor.predict(model="new", route="chat", text=LONG.format(123456789), prompt_tokens=12).p50
    assert short < long < 0.6 * before
    assert predictor.predict(model="m", route="chat", text=LONG.format(123456789), prompt_tokens=12).p50 > 300


def test_a_restart_forgets_nothing_that_matters() -> None:
    predictor, _ = trained()
    copy = LengthPredictor(clock=Clock(), hour=lambda: 12.0, learn=False)
    assert copy.restore(list(predictor.state()))
    for text in (SHORT.format(7), LONG.format(8)):
        request = {"model": "m", "route": "chat", "text": text, "prompt_tokens": 12}
        was, now = predictor.predict(**request), copy.predict(**request)  # type: ignore[arg-type]
        assert (now.source, now.orders, now.admits) == (was.source, was.orders, was.admits)
        assert (now.p50, now.p90) == pytest.approx((was.p50, was.p90), rel=1e-3)


def changed(lines: list[str], section: str, page: object) -> list[str]:
    """Return a state with one page replaced, sealed again as if it had been written so."""
    kept = [tuple(line.split("\t", 1)) for line in lines[1:-1]]
    pages = [(name, text if name == MODEL else json.loads(text)) for name, text in kept]
    return list(write([*((n, p) for n, p in pages if n != section), (section, page)]))


@pytest.mark.parametrize(
    ("section", "page"),
    [
        ("scale", None),
        ("scale", ["m", "", ["nan"]]),
        ("spread", []),
        ("tracks", [["zz", 1, 1, []]]),
        ("tracks", [["1", 1, 1, []]]),
        ("conformal", {}),
        ("ladder", [["", "learned", [1, 2]]]),
        ("ladder", [["", "upwards", [0] * 10]]),
        ("model", "nonsense"),
    ],
)
def test_a_state_that_is_not_sound_changes_nothing(section: str, page: object) -> None:
    predictor = LengthPredictor(learn=False)
    serve(predictor, 50, text="a")
    before = list(predictor.state())
    assert not predictor.restore(changed(before, section, page))
    assert list(predictor.state()) == before


def test_a_state_that_is_cut_off_altered_or_of_another_version_changes_nothing() -> None:
    predictor = LengthPredictor(learn=False)
    serve(predictor, 50, text="a")
    lines = list(predictor.state())
    other = LengthPredictor(learn=False)
    for spoilt in (
        [],
        lines[:-1],
        [*lines[:3], *lines[4:]],
        [line.replace("50", "51") if line.startswith("scale") else line for line in lines],
        [line.replace(f",{VERSION}]", f",{VERSION + 1}]") if line.startswith("head") else line for line in lines],
        ["what is this", *lines],
    ):
        assert not other.restore(spoilt)
    assert other.restore(lines)


class Broken:
    """A learned model that answers whatever it is told to."""

    def __init__(self, answer: float | Exception) -> None:
        self.answer = answer
        self.calls = 0

    def __call__(self, x: object) -> float:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def with_model(clock: Clock, score: Broken, timer: object = None) -> LengthPredictor:
    predictor = make(clock, Never, min_rows=10**9)
    model = parse_model(constant_model(1.0, 2.0), names=FEATURES)
    object.__setattr__(model, "p50", score)
    predictor._model = model
    if timer is not None:
        predictor._timer = timer  # type: ignore[assignment]
    return predictor


@pytest.mark.parametrize(
    "answer", [math.nan, math.inf, -math.inf, 1e300, ValueError("broken"), ZeroDivisionError(), RecursionError()]
)
def test_a_learned_model_that_breaks_is_passed_over_and_then_left_alone(answer: float | Exception) -> None:
    score = Broken(answer)
    predictor = with_model(Clock(), score)
    for _ in range(20):
        serve(predictor, 50, text=f"{score.calls} prompts")
    prediction = predictor.predict(model="m", text="anything")
    assert prediction.source in (Source.MODEL, Source.PRIOR)
    assert 0 < prediction.p50 <= prediction.p90 < math.inf
    assert score.calls == 3  # two strikes each, then it rests
    assert predictor.calibration()["trips"] == 1


def test_a_learned_model_that_is_late_is_left_out_for_a_while() -> None:
    ticks = iter(range(10**6))
    score = Broken(1.0)
    predictor = with_model(Clock(), score, lambda: float(next(ticks)))
    for index in range(100):
        predictor.predict(model="m", text=f"{index}")
    assert score.calls == 6


def test_a_learned_model_worse_than_the_usual_length_is_not_listened_to() -> None:
    predictor = with_model(Clock(), Broken(3.5))
    for index in range(300):
        serve(predictor, 100 if index % 2 else 120, text=f"{index}", route=f"{index}")
    assert predictor.calibration()["demoted"] == ["m"]
    assert "times what the usual length does" in predictor.calibration()["steps"]["learned"]["why"]
    prediction = predictor.predict(model="m", text="next")
    assert 50 < prediction.p50 < 200


def test_nothing_is_relied_on_before_it_was_compared_with_enough_outcomes() -> None:
    predictor = LengthPredictor(learn=False, min_samples=30)
    assert not predictor.predict(model="m", text="same").orders
    for index in range(30):
        prediction = predictor.predict(model="m", text="same")
        assert prediction.source is not Source.PROMPT
        assert not prediction.admits, index
        predictor.observe(prediction, 10 if index else 400, "stop")
    serve(predictor, 10, text="same")
    prediction = predictor.predict(model="m", text="same")
    assert (prediction.source, prediction.orders, prediction.admits) == (Source.PROMPT, True, True)
    assert predictor.calibration()["in_use"] == {"order": "history", "admit": "history"}


def test_a_history_that_misleads_gives_way_to_the_usual_length_and_can_come_back() -> None:
    """One template whose answers take turns: what it got before says less than the usual length."""
    predictor = LengthPredictor(learn=False, min_samples=30)
    rng = random.Random(3)
    group = [rng.randrange(40) for _ in range(400)]
    for member in group:
        serve(predictor, 10 if rng.random() < 0.3 else 300, prefix_group=member, text=f"{rng.random()}")
    assert predictor.predict(model="m", prefix_group=0, text="x").source is Source.MODEL
    assert predictor.calibration()["in_use"]["order"] == "usual"
    for _ in range(800):
        member = rng.randrange(40)
        serve(predictor, 20 * member, prefix_group=member, text=f"{rng.random()}")
    assert predictor.predict(model="m", prefix_group=0, text="x").source is Source.TEMPLATE


def test_every_prediction_is_counted_by_what_carried_it() -> None:
    predictor = LengthPredictor(learn=False)
    for _ in range(7):
        serve(predictor, 10, text="x")
    counts = predictor.calibration()["sources"]
    assert sum(counts.values()) == 7
    assert (counts["prior"], counts["model"]) == (1, 6)


def test_history_only_forgets_the_learned_model() -> None:
    predictor, _ = trained()
    predictor.learn_with(None)
    assert predictor.calibration()["model"] is None
    assert predictor.predict(model="m", text="x").source is not Source.BOOSTED


@pytest.mark.slow
def test_a_restored_model_is_followed_by_better_ones() -> None:
    """Outcomes of this run are all new to a model of the last one, however many that one had seen."""
    before, _ = trained()
    clock = Clock()
    after = make(clock, min_rows=400, rows=10**9)
    assert after.restore(list(before.state()))
    traffic(after, clock, 402, rng=random.Random(20), factor=2.0)
    report = after.calibration()
    assert report["trainer"]["last_result"].startswith("took a model of"), report["trainer"]
    assert report["model"]["judged"] > 50


def test_a_training_that_never_ends_holds_nobody_up() -> None:
    clock = Clock()
    predictor = make(clock, Never, min_rows=50)
    traffic(predictor, clock, 200, rng=random.Random(12))
    assert predictor.calibration()["trainer"]["training"]
    assert predictor.predict(model="m", text="x").source is Source.MODEL
    assert predictor.failures == 0


def test_an_exception_inside_costs_precision_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    predictor = LengthPredictor(learn=False)
    predictor._memory.history.hear = None  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            serve(predictor, 50, text="x", max_tokens=60)
    assert predictor.predict(model="m", text="x", max_tokens=60).p90 == 60
    assert predictor.failures == 101
    assert len(caplog.records) == 7  # 1, 2, 4 ... 64


def test_without_scikit_learn_it_keeps_to_history_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(facade, "sklearn_installed", lambda: False)
    with caplog.at_level(logging.INFO):
        predictor = LengthPredictor()
        for index in range(400):
            serve(predictor, 50, text=f"{index}")
    assert sum("scikit-learn" in record.message for record in caplog.records) == 1
    assert predictor.calibration()["trainer"] is None


@pytest.mark.slow
def test_lengths_that_change_for_good_are_followed() -> None:
    predictor, clock = trained()
    traffic(predictor, clock, 300, rng=random.Random(13), factor=4.0)
    assert predictor.calibration()["drifts"] >= 1
    prediction = predictor.predict(model="m", route="chat", text=LONG.format(123456789), prompt_tokens=12)
    assert prediction.p50 > 1500
