"""Who keeps what: a bounded memory that callers cannot rewrite."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.keepers import LONGEST_ID, Keepers

NAMES = ("http://a", "http://b")


def test_what_was_made_is_found_and_what_was_not_is_not() -> None:
    keepers = Keepers(NAMES)
    assert keepers.empty
    keepers.made("resp_1", "http://a")
    keepers.served("file-2", "http://b")
    assert not keepers.empty
    assert [keepers.find(id) for id in ("resp_1", "file-2", "resp_2", "", "x" * 300)] == [*NAMES, None, None, None]


def test_serving_an_id_moves_nothing_and_making_it_does() -> None:
    keepers = Keepers(NAMES)
    keepers.made("file-1", "http://a")
    keepers.served("file-1", "http://b")
    assert keepers.find("file-1") == "http://a"
    keepers.made("file-1", "http://b")
    assert keepers.find("file-1") == "http://b"


def test_the_least_recently_used_leave() -> None:
    keepers = Keepers(NAMES, limit=3)
    for id in "abc":
        keepers.made(id, "http://a")
    keepers.find("a")
    keepers.served("b", "http://a")
    keepers.made("d", "http://a")
    assert [keepers.find(id) for id in "abcd"] == ["http://a", "http://a", None, "http://a"]


def test_upstreams_that_are_gone_let_go_and_those_that_are_unknown_keep_nothing() -> None:
    keepers = Keepers(NAMES)
    keepers.made("x", "http://a")
    keepers.made("y", "http://b")
    keepers.retain(["http://b", "http://c"])
    keepers.made("z", "http://a")
    keepers.served("z", "http://a")
    keepers.hear([("00" * 16, "http://a")])
    assert len(keepers) == 1
    assert keepers.find("y") == "http://b"


def test_only_what_is_new_is_told_and_it_is_told_once() -> None:
    rung: list[int] = []
    keepers, other = Keepers(NAMES), Keepers(NAMES)
    keepers.made("before", "http://a")
    keepers.on_news = lambda: rung.append(1)
    for _ in range(3):
        keepers.made("x", "http://a")
        keepers.served("y", "http://b")
    assert rung == [1]
    other.on_news = lambda: rung.append(2)
    other.hear(keepers.take())
    assert keepers.take() == []
    assert other.take() == [], "what was heard is not passed on"
    assert [other.find(id) for id in ("x", "y", "before")] == [*NAMES, None]
    keepers.made("x", "http://a")
    assert keepers.take() == []
    keepers.made("x", "http://b")
    assert rung == [1, 1]
    newcomer = Keepers(NAMES)
    newcomer.hear(keepers.rows())
    assert [newcomer.find(id) for id in ("x", "y", "before")] == ["http://b", "http://b", "http://a"]


def test_news_that_nobody_takes_are_bounded() -> None:
    keepers = Keepers(NAMES)
    keepers.on_news = lambda: None
    for number in range(5_000):
        keepers.made(f"x{number}", "http://a")
    assert len(keepers.take()) == 4_096


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=LONGEST_ID + 9), st.sampled_from((*NAMES, "http://z")))))
def test_it_is_never_larger_than_its_limit_and_never_names_a_stranger(steps: list[tuple[bool, str, str]]) -> None:
    keepers = Keepers(NAMES, limit=4)
    for made, id, name in steps:
        (keepers.made if made else keepers.served)(id, name)
        assert len(keepers) <= 4
        assert keepers.find(id) in (*NAMES, None)
        if made and 0 < len(id) <= LONGEST_ID and name in NAMES:
            assert keepers.find(id) == name
