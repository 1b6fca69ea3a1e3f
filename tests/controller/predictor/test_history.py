from __future__ import annotations

import json
import math

import pytest

from controller.predictor.history import EXACT, FEATURES, Blend, History, Said, localise, mix
from controller.predictor.keys import prompt_key, size_key, system_prompt, template_keys


def learn(history: History, level: str, key: int, values: list[float], scale: float = 0.0) -> None:
    for value in values:
        history.observe(value, [(level, key)], [], scale)


def blend(history: History, q50: float, q90: float, keys: list[tuple[str, int]], scale: float) -> Blend:
    return mix(q50, q90, history.hear(keys, scale))


def test_a_template_needs_five_outcomes_and_a_prompt_one() -> None:
    history = History()
    learn(history, "group", 1, [5.0] * 4)
    assert blend(history, 1.0, 2.0, [("group", 1)], 0.0).q50 == 1.0
    learn(history, "group", 1, [5.0])
    assert blend(history, 1.0, 2.0, [("group", 1)], 0.0).q50 == pytest.approx(1 + 5 / 8 * 4)
    learn(history, "prompt", 2, [3.0])
    assert blend(history, 1.0, 2.0, [("prompt", 2)], 0.0).q50 == pytest.approx(1 + 1 / 1.7 * 2)


def test_the_narrowest_level_has_the_last_word() -> None:
    history = History()
    learn(history, "group", 1, [5.0] * 50)
    learn(history, "prompt", 2, [1.0] * 50)
    narrow = blend(history, 3.0, 4.0, [("group", 1), ("prompt", 2)], 0.0)
    assert narrow.carrier == "prompt"
    assert narrow.q50 < 1.2


def test_models_share_a_prompt_relative_to_their_scale() -> None:
    history = History()
    learn(history, "elsewhere", 1, [6.0] * 8, scale=5.0)
    assert blend(history, 2.0, 3.0, [("elsewhere", 1)], 2.0).q50 == pytest.approx(2.0 + 8 / 10 * 1.0)


def test_the_ninth_decile_widens_where_a_level_is_often_exceeded() -> None:
    history = History()
    for _ in range(100):
        history.observe(5.0, [], [Said("prompt", 1.0, 1.0, 1.0)], 0.0)
    learn(history, "prompt", 1, [1.0])
    wide = blend(history, 1.0, 1.0, [("prompt", 1)], 0.0)
    assert wide.q90 - wide.q50 > 1.0


def test_history_survives_as_json() -> None:
    history = History(capacity=100)
    for key in range(10):
        learn(history, "prompt", key, [float(key)] * (key + 1))
    pages = json.loads(json.dumps(list(history.pages(limit=5, size=2))))
    assert [len(page) for page in pages] == [2, 2, 1]
    copy = History()
    copy.restore(history.spread(), (track for page in pages for track in page))
    assert len(copy) == 5
    assert blend(copy, 0.0, 0.0, [("prompt", 9)], 0.0) == blend(history, 0.0, 0.0, [("prompt", 9)], 0.0)


def test_a_learned_answer_takes_over_only_from_levels_it_has_not_seen() -> None:
    said = [Said("group", 1.0, 2.0, 0.9), Said("prompt", 5.0, 6.0, 0.5)]
    assert mix(3.0, 4.0, said, EXACT) == Blend(4.0, 5.0, "prompt")


def test_features_are_missing_without_history_and_relative_to_the_scale_with_it() -> None:
    history = History()
    bare = dict(zip(FEATURES, history.features([("group", 1)]), strict=True))
    assert math.isnan(bare["group_centre"])
    learn(history, "group", 1, [6.0] * 3)
    local = dict(zip(FEATURES, localise(history.features([("group", 1)]), 5.0), strict=True))
    assert (local["log_scale"], local["group_n"], local["group_centre"]) == (5.0, 3.0, pytest.approx(1.0))


def test_keys_tell_apart_what_differs_and_join_what_is_alike() -> None:
    assert prompt_key("m", "a") != prompt_key("m", "b")
    assert prompt_key("m", "a") != prompt_key("n", "a")
    assert prompt_key("m", "x" * 9000 + "y") != prompt_key("m", "x" * 9001 + "y")
    assert prompt_key("m", "") == size_key("m", 0) == 0
    opening = "Ticket 12345 of 2024-11-29, please sort it into a class: "
    one = template_keys("m", "chat", opening + "printer")
    two = template_keys("m", "chat", opening.replace("12345", "99999") + "screen")
    assert one == two != template_keys("m", "chat", "Something else that is longer than the opening of a prompt")
    assert template_keys("m", "chat", "", "be brief")[0] != template_keys("m", "chat", "", "be long")[0]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, ""),
        ({"messages": [{"role": "system", "content": "S"}]}, "S"),
        ({"messages": [{"role": "developer", "content": "D"}]}, "D"),
        ({"messages": [{"role": "user", "content": "U"}]}, ""),
        ({"messages": [{"role": "system", "content": [{"text": "part"}]}]}, ""),
        ({"messages": "nonsense"}, ""),
        ({"system": "top level"}, "top level"),
    ],
)
def test_the_system_prompt_is_found_where_chat_bodies_put_it(params: dict[str, object] | None, expected: str) -> None:
    assert system_prompt(params) == expected
