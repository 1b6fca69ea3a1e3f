"""Affinity: who gets which key, what it costs in memory, and when load counts for more."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config.model import PoolConfig
from proxy.http.request_fields import RequestFields
from proxy.upstream.address import Address
from proxy.upstream.affinity import affinity_of, header_key, prefix_key, prompt_bytes
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.health import Health
from proxy.upstream.lease import Ledger
from proxy.upstream.resolve import is_address, spread
from proxy.upstream.routing import PrefixAffinity, Sticky
from proxy.upstream.standing import HealthRules
from proxy.wire.base import Call, Head
from proxy.wire.registry import detect

KEYS = [f"session-{n}".encode() for n in range(3000)]


@pytest.fixture
def some() -> list[Endpoint]:
    loop = asyncio.new_event_loop()
    loop.close()
    return [make(loop, n) for n in range(1, 5)]


def make(loop: asyncio.AbstractEventLoop, port: int, weight: float = 1.0, slow_start_s: float = 0.0) -> Endpoint:
    address = Address.of(f"http://127.0.0.1:{port}")
    rules = HealthRules(eject_after=3, unhealthy_after=1)
    pool = ConnectionPool(loop, address, limit=4, idle_s=1.0)
    return Endpoint(address, pool, weight=weight, rules=rules, slow_start_s=slow_start_s)


def parsed(path: str, body: dict[str, Any]) -> Call:
    wire, route = detect("POST", path)
    return wire.parse(route, Head("POST", path, path, []), orjson.dumps(body))


def chat(*texts: str, **more: Any) -> Call:
    messages = [{"role": "user", "content": text} for text in texts]
    return parsed("/v1/chat/completions", {"model": "m", **more, "messages": messages})


# -- sticky ------------------------------------------------------------------------------------------------


def test_a_key_stays_where_it_is_and_only_those_of_a_dead_upstream_move(some: list[Endpoint]) -> None:
    router = Sticky()
    before = {key: router.pick(some, 0.0, key=key) for key in KEYS}
    assert all(router.pick(some[::-1], 0.0, key=key) is home for key, home in before.items())
    dead = some[1]
    dead.probed(Health.GONE, 0.0)
    during = {key: router.pick(some, 0.0, key=key) for key in KEYS}
    assert dead not in during.values()
    assert all(during[key] is home for key, home in before.items() if home is not dead)
    dead.probed(Health.WELL, 0.0)
    assert {key: router.pick(some, 0.0, key=key) for key in KEYS} == before, "they come back with it"


def test_keys_are_spread_by_weight(some: list[Endpoint]) -> None:
    some[0].weight = 3.0
    found = Counter(Sticky().pick(some, 0.0, key=key) for key in KEYS)
    assert found[some[0]] / len(KEYS) == pytest.approx(0.5, abs=0.05)
    assert min(found[one] for one in some[1:]) / len(KEYS) > 0.12


def test_sessions_come_back_gradually_to_an_upstream_that_is_eased_in() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    some = [make(loop, n, slow_start_s=10.0) for n in range(1, 4)]
    some[0].ease_in()
    shares = [
        sum(Sticky().pick(some, now, key=key) is some[0] for key in KEYS) / len(KEYS) for now in (0.0, 5.0, 10.0)
    ]
    assert shares == pytest.approx([0.1 / 2.1, 0.5 / 2.5, 1 / 3], abs=0.04)


def test_requests_without_the_header_go_by_work(some: list[Endpoint]) -> None:
    router, book = Sticky(), Ledger()
    for one in some[1:]:
        book.open(one, 100.0)
    assert router.pick(some, 0.0) is some[0]


def test_who_was_tried_is_not_asked_again_and_the_next_is_always_the_same(some: list[Endpoint]) -> None:
    router = Sticky()
    for key in KEYS[:50]:
        first = router.pick(some, 0.0, key=key)
        assert first is not None
        second = {router.pick(some, 0.0, key=key, exclude=[first]) for _ in range(3)}
        assert len(second) == 1
        assert first not in second


def test_the_header_is_found_whatever_its_case_and_whoever_it_was_meant_for() -> None:
    fields = RequestFields([(b"Host", b"h"), (b"X-Session-ID", b" a b "), (b"X-Trimtab-Tenant", b"t")])
    assert header_key(fields, b"x-session-id") == b"a b"
    assert header_key(fields, b"x-trimtab-tenant") == b"t"
    assert header_key(fields, b"x-other") is None


# -- prefix ------------------------------------------------------------------------------------------------


def test_equal_beginnings_have_equal_blocks_whatever_stands_around_them() -> None:
    system, size = "You are helpful. " * 40, 128
    one, two = prefix_key(chat(system, "a" * 300, temperature=1), size), prefix_key(chat(system, "b" * 300), size)
    assert one is not None
    assert two is not None
    shared = len(system) // size
    assert one[:shared] == two[:shared]
    assert one[-1] != two[-1]
    assert prefix_key(chat("short"), 512) is None
    other = parsed("/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": system}]})
    assert prefix_key(other, size)[0] != one[0], "another model's cache is of no use"  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x" * 600}]}),
        ("/v1/completions", {"model": "m", "prompt": "x" * 600}),
        ("/v1/responses", {"model": "m", "instructions": "x" * 300, "input": "x" * 300}),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "system": "x" * 600, "messages": []}),
        ("/api/generate", {"model": "m", "prompt": "x" * 600}),
        ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "x" * 600}]}),
        ("/generate", {"inputs": "x" * 600}),
    ],
)
def test_every_protocols_prompt_is_found(path: str, body: dict[str, Any]) -> None:
    assert prompt_bytes(parsed(path, body), 10_000).count(b"x") >= 600


@given(st.lists(st.text(max_size=50), max_size=8), st.integers(1, 300))
def test_no_more_is_looked_at_than_the_limit(texts: list[str], limit: int) -> None:
    assert len(prompt_bytes(chat(*texts), limit)) <= limit


def test_a_conversation_goes_where_it_began(some: list[Endpoint]) -> None:
    router = PrefixAffinity(max_blocks=1000, max_load_factor=1.5)
    homes = {n: router.pick(some, 0.0, work=10.0, key=(n, n + 1)) for n in range(0, 800, 100)}
    assert len(set(homes.values())) == 4, "new ones are spread"
    for n, home in homes.items():
        assert router.pick(some, 0.0, work=10.0, key=(n, n + 1, n + 2, n + 3)) is home


def test_the_longest_known_beginning_counts(some: list[Endpoint]) -> None:
    router, book = PrefixAffinity(max_blocks=1000, max_load_factor=1.0), Ledger()
    first = router.pick(some, 0.0, key=(1, 2))
    assert first is not None
    lease = book.open(first, 1.0)
    second = router.pick(some, 0.0, key=(1, 7, 8))
    assert second is not first, "its holder is busy"
    lease.release()
    assert router.pick(some, 0.0, key=(1, 7, 8, 9)) is second
    assert router.pick(some, 0.0, key=(1, 2, 3)) is first


def test_a_hot_prefix_does_not_overload_one_upstream(some: list[Endpoint]) -> None:
    router, book = PrefixAffinity(max_blocks=1000, max_load_factor=1.5), Ledger()
    for _ in range(400):
        chosen = router.pick(some, 0.0, work=100.0, key=(1, 2, 3))
        assert chosen is not None
        book.open(chosen, 100.0)
    assert max(one.inflight for one in some) <= 1.5 * 400 / 4 + 1
    assert sum(one.inflight > 0 for one in some) == 3, "as few copies of it as the bound allows"


def test_the_guard_knows_weights(some: list[Endpoint]) -> None:
    some[0].weight = 5.0
    router, book = PrefixAffinity(max_blocks=1000, max_load_factor=1.0), Ledger()
    for _ in range(800):
        chosen = router.pick(some, 0.0, work=1.0, key=(1,))
        assert chosen is not None
        book.open(chosen, 1.0)
    assert some[0].inflight == pytest.approx(500, abs=10)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), max_size=60))
def test_memory_is_bounded_whatever_comes(keys: list[list[int]]) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    some, router = [make(loop, n) for n in range(1, 4)], PrefixAffinity(max_blocks=64, max_load_factor=1.5)
    for key in keys:
        assert router.pick(some, 0.0, key=tuple(key)) in some
        assert len(router) <= 64


def test_what_was_not_used_for_longest_is_forgotten_first(some: list[Endpoint]) -> None:
    router = PrefixAffinity(max_blocks=64, max_load_factor=100.0)
    kept = router.pick(some, 0.0, key=(1,))
    for n in range(100, 200):
        router.pick(some, 0.0, key=(n,))
        assert router.pick(some, 0.0, key=(1,)) is kept


def test_a_dead_holder_is_passed_over_and_found_again(some: list[Endpoint]) -> None:
    router = PrefixAffinity(max_blocks=64, max_load_factor=100.0)
    home = router.pick(some, 0.0, key=(1, 2))
    assert home is not None
    home.probed(Health.GONE, 0.0)
    assert router.pick(some, 0.0, key=(1, 2)) is not home
    home.probed(Health.WELL, 0.0)
    for one in some:
        if one is not home:
            one.probed(Health.GONE, 0.0)
    assert router.pick(some, 0.0, key=(1, 2)) is home


# -- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstreams", "routing", "reads"),
    [
        (["http://a", "http://b"], "least-work", False),
        (["http://a", "http://b"], "round-robin", False),
        (["http://a", "http://b"], "prefix", True),
        (["http://a", "http://b"], {"strategy": "sticky", "header": "x-session"}, True),
        (["http://a"], "prefix", False),
    ],
)
def test_nothing_is_read_where_nothing_depends_on_it(upstreams: list[str], routing: Any, reads: bool) -> None:
    assert (affinity_of(PoolConfig(upstreams=upstreams, routing=routing)) is not None) is reads


@pytest.mark.parametrize(
    ("routing", "says"),
    [
        ("sticky", "sticky needs header, such as x-session-id"),
        ({"strategy": "prefix", "header": "x"}, "header only makes sense with strategy sticky"),
        ({"strategy": "random"}, "least-work"),
        ({"strategy": "prefix", "max_load_factor": 0.5}, "greater than or equal to 1"),
        ({"strategy": "sticky", "header": "no header"}, "pattern"),
    ],
)
def test_a_mistake_says_what_would_be_right(routing: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PoolConfig(upstreams=["http://a"], routing=routing)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "known"),
    [("127.0.0.1", True), ("::1", True), ("fe80::1%eth0", True), ("localhost", False), ("gpu-1", False)],
)
def test_addresses_are_not_looked_up(host: str, known: bool) -> None:
    assert is_address(host) is known


def test_a_name_with_many_addresses_is_spread_over_those_of_the_preferred_family() -> None:
    found = ["10.0.0.1", "::1", "10.0.0.2", "10.0.0.3"]
    assert spread(found, lambda size: 1) == ["10.0.0.2", "10.0.0.3", "10.0.0.1", "::1"]
    assert spread(["10.0.0.1"], lambda size: 0) == ["10.0.0.1"]
