"""Where requests share calls unasked, and for how long no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.dispatch.trust import MergeTrust
from tests.proxy.wire.support import EMBEDDINGS, parse

ROUTE = "embeddings"
GOOD = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.5]}]}'
BARE = b'[{"index":0,"embedding":[1.5]}]'


class Book:
    def __init__(self, *upstreams: str) -> None:
        self.said: list[tuple[str, str]] = []
        self.trust = MergeTrust(upstreams or ("http://a",), self.note)

    def note(self, rule: str, before: Mapping[str, Any], after: Mapping[str, Any], text: str) -> None:
        self.said.append((rule, after["dispatch"]))

    def look(self, body: bytes, now: float, upstream: str = "http://a", target: str = EMBEDDINGS) -> None:
        from proxy.wire.registry import wire_format

        call = parse(target, {"input": "x"})
        self.trust.looked_at(upstream, target, wire_format("openai"), call, body, (), now)

    def merges(self, now: float, *, vouched: bool = False, target: str = EMBEDDINGS) -> bool:
        return self.trust.merges(ROUTE, target, now, vouched=vouched)


def test_one_answer_of_each_upstream_is_enough_and_none_is_too_few() -> None:
    book = Book("http://a", "http://b")
    assert not book.merges(0.0)
    book.look(GOOD, 0.0)
    assert not book.merges(0.0)
    book.look(GOOD, 0.0, "http://stranger")
    book.look(GOOD, 0.0, "http://b", EMBEDDINGS + "?api-version=2")
    assert book.merges(0.0)
    assert not book.merges(0.0, target="/x" + EMBEDDINGS)
    assert book.said == [("merge.recognised", "merged")]


def test_an_upstream_that_was_not_recognised_is_looked_at_ever_more_rarely() -> None:
    book = Book()
    for _ in range(12):
        book.look(BARE, 0.0)
    book.look(GOOD, 0.05)
    assert not book.merges(0.1)
    book.look(GOOD, 0.2)
    assert book.merges(0.2)


def test_three_mismatches_in_a_row_pause_and_the_pause_doubles_until_one_is_divided() -> None:
    book = Book()
    now, pauses = 0.0, []
    for _ in range(8):
        while book.merges(now, vouched=True):
            book.trust.undivided("http://a", ROUTE, EMBEDDINGS, "why", now)
        start = now
        while not book.merges(now, vouched=True):
            now += 1.0
        pauses.append(now - start)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    book.trust.divided(ROUTE, EMBEDDINGS)
    assert not book.trust.doubting
    assert book.said == [("merge.undivided", "alone")] * 8 + [("merge.divided_again", "merged")]


def test_mismatches_between_good_ones_are_each_ones_own() -> None:
    book = Book()
    for _ in range(10):
        book.trust.undivided("http://a", ROUTE, EMBEDDINGS, "why", 0.0)
        book.trust.undivided("http://a", ROUTE, EMBEDDINGS, "why", 0.0)
        assert book.trust.doubting
        book.trust.divided(ROUTE, EMBEDDINGS)
    assert book.merges(0.0, vouched=True)
    assert book.said == []


def test_an_answer_that_company_changed_ends_it_for_an_hour_unless_somebody_vouched() -> None:
    book = Book()
    book.look(GOOD, 0.0)
    book.trust.differed("http://a", ROUTE, EMBEDDINGS, 1.0, vouched=False)
    assert [book.merges(now) for now in (1.0, 3600.0, 3601.0)] == [False, False, True]
    book.trust.differed("http://a", ROUTE, EMBEDDINGS, 4000.0, vouched=False)
    assert [book.merges(now) for now in (4000.0 + 7199.0, 4000.0 + 7200.0)] == [False, True]
    asked = Book()
    for now in (0.0, 1.0, 2.0, 4000.0):
        asked.trust.differed("http://a", ROUTE, EMBEDDINGS, now, vouched=True)
        assert asked.merges(now, vouched=True)
    assert asked.said == [("merge.differs", "merged")] * 2


def test_what_is_remembered_of_paths_is_bounded() -> None:
    book = Book()
    for number in range(1000):
        book.look(GOOD, 0.0, target=f"/{number}{EMBEDDINGS}")
    assert sum(book.merges(0.0, target=f"/{number}{EMBEDDINGS}") for number in range(1000)) == 64
