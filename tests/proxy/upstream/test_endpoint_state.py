"""Endpoints, routing, retry budget and leases, without a socket."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint, State
from proxy.upstream.health import Health
from proxy.upstream.lease import Ledger
from proxy.upstream.leaving import Leaving, UnknownUpstream
from proxy.upstream.retry import RetryBudget
from proxy.upstream.routing import LeastWork, PrefixAffinity, RoundRobin, Sticky
from proxy.upstream.standing import HealthRules


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    yield loop  # type: ignore[misc]
    loop.close()


def endpoint(
    loop: asyncio.AbstractEventLoop, port: int = 1, weight: float = 1.0, slow_start_s: float = 0.0
) -> Endpoint:
    address = Address.of(f"http://127.0.0.1:{port}")
    rules = HealthRules(eject_after=3, trial_s=10.0, unhealthy_after=2, healthy_after=2)
    connections = ConnectionPool(loop, address, limit=4, idle_s=1.0)
    return Endpoint(address, connections, weight=weight, rules=rules, slow_start_s=slow_start_s)


@pytest.mark.parametrize(
    ("url", "authority", "port", "prefix", "tls"),
    [
        ("http://h:8000", b"h:8000", 8000, b"", False),
        ("http://h", b"h", 80, b"", False),
        ("https://h/v1/", b"h", 443, b"/v1", True),
        ("http://[::1]:9", b"[::1]:9", 9, b"", False),
        ("https://h:443", b"h", 443, b"", True),
    ],
)
def test_addresses(url: str, authority: bytes, port: int, prefix: bytes, tls: bool) -> None:
    address = Address.of(url)
    assert (address.authority, address.port, address.prefix) == (authority, port, prefix)
    assert (address.tls is not None) is tls


@pytest.mark.parametrize("url", ["h:80", "ftp://h", "http://", ""])
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        Address.of(url)


def test_an_ejected_upstream_is_tried_at_once_and_then_each_trial_s_one_at_a_time(
    loop: asyncio.AbstractEventLoop,
) -> None:
    e, book = endpoint(loop), Ledger()
    assert [e.failed(100.0) for _ in range(3)] == [False, False, True]
    assert e.state(100.0) is State.EJECTED
    assert not e.last_resort(100.0)
    for now in (100.0, 110.0, 120.0, 130.0, 140.0):
        assert e.available(now), "never after a wait that grows"
        trial = book.open(e)
        assert not e.available(now), "one trial at a time"
        e.failed(now)
        trial.release()
        assert not e.available(now + 9.9)
    e.succeeded()
    assert e.state(140.0) is State.UP
    assert e.available(140.0)


def test_whatever_broke_with_a_death_is_one_failure(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop)
    for n in range(64):
        e.failed(50.0 + n / 1000.0, since=40.0 + n / 10.0)
    assert e.standing.failures_in_row == 1
    assert e.failure_rate == pytest.approx(0.1)
    e.failed(60.0, since=55.0)
    assert e.standing.failures_in_row == 2, "what was sent afterwards is another matter"


def test_timeouts_that_lie_apart_are_failures_of_their_own(loop: asyncio.AbstractEventLoop) -> None:
    """Otherwise one that hangs would have to be waited for as often as it takes to eject it."""
    e = endpoint(loop)
    for n in range(8):
        e.failed(300.0 + n / 10.0, since=n / 10.0, timeout=True)
    assert e.standing.failures_in_row == 1
    e.failed(301.0, since=1.0, timeout=True)
    assert e.failed(302.0, since=2.0, timeout=True)
    assert e.state(302.0) is State.EJECTED


def test_who_refuses_a_connection_is_not_asked_and_comes_back_with_a_clean_record(
    loop: asyncio.AbstractEventLoop,
) -> None:
    e = endpoint(loop, slow_start_s=10.0)
    for now in (0.0, 1.0):
        e.failed(now)
    assert [e.refused(2.0), e.refused(2.1)] == [True, False]
    e.failed(2.2, since=1.9)
    assert e.state(3.0) is State.EJECTED
    assert not e.available(1e9)
    assert not e.reachable
    e.succeeded(since=1.0)
    assert not e.reachable, "an answer over an old connection does not open the port"
    assert [e.accepted(), e.accepted()] == [True, False]
    assert (e.state(3.0), e.standing.failures_in_row) == (State.UP, 0)
    assert e.share(3.0) == pytest.approx(0.1), "it is eased in"


def test_what_comes_back_and_says_that_it_is_still_starting_is_down_at_once(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop)
    e.refused(0.0)
    e.probed(Health.ILL, 1.0)
    assert e.state(1.0) is State.DOWN
    e.probed(Health.WELL, 2.0)
    e.probed(Health.WELL, 2.0)
    assert e.state(2.0) is State.UP


def test_overload_is_backed_off_from_and_is_not_death(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop)
    e.overloaded(0.0, 7.0)
    assert e.state(1.0) is State.OVERLOADED
    assert not e.available(6.9)
    assert e.last_resort(6.9)
    assert e.available(7.0)
    e.succeeded()
    for wait in (0.5, 1.0, 2.0, 4.0):
        e.overloaded(0.0, None)
        assert e.overloaded_until == wait
    e.overloaded(0.0, 86_400.0)
    assert e.overloaded_until == 300.0, "no upstream can take itself out for a day"


@pytest.mark.parametrize("answer", ["200", "bare 503", "429 with less", "another 429 with less"])
def test_an_answer_to_something_sent_before_shortens_no_retry_after(
    loop: asyncio.AbstractEventLoop, answer: str
) -> None:
    e = endpoint(loop)
    e.overloaded(10.0, 20.0, since=9.0)
    for since, until in ((9.5, 30.0), (11.0, {"200": 0.0, "bare 503": 30.0}.get(answer, 13.0))):
        if answer == "200":
            e.succeeded(since)
        else:
            e.overloaded(12.0, None if answer == "bare 503" else 1.0, since)
        assert e.overloaded_until == until, f"{answer} to what was sent at {since}"


def test_many_refusals_of_one_moment_back_off_once(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop)
    for _ in range(8):
        e.overloaded(10.0, None, since=9.0)
    assert e.overloaded_until == 10.5


def test_health_checks_take_out_and_bring_back(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop)
    assert [e.probed(Health.ILL, 0.0), e.probed(Health.ILL, 0.0)] == [False, True]
    assert e.state(0.0) is State.DOWN
    assert not e.last_resort(0.0)
    assert [e.probed(Health.WELL, 0.0), e.probed(Health.WELL, 0.0)] == [False, True]
    assert e.state(0.0) is State.UP


def test_a_good_check_brings_the_next_trial_forward_and_an_open_port_does_not(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """What breaks off its answers accepts connections all the while."""
    e = endpoint(loop)
    for now in (0.0, 0.0, 0.0, 0.5):
        e.failed(now)
    e.probed(Health.WELL, 1.0, proves=False)
    assert not e.available(1.0)
    e.probed(Health.WELL, 1.0)
    assert e.available(1.0)
    assert e.state(1.0) is State.EJECTED, "until it has answered"


def test_ejection_leaves_nobody_without_an_upstream(loop: asyncio.AbstractEventLoop) -> None:
    a, b = endpoint(loop, 1), endpoint(loop, 2)
    for e in (a, b):
        for now in (0.0, 1.0, 2.0, 3.0):
            e.failed(now)
    for router in (LeastWork(), RoundRobin(), Sticky(), PrefixAffinity(max_blocks=64, max_load_factor=2.0)):
        assert router.pick([a, b], 4.0, key=b"k") in (a, b)
        assert router.pick([a, b], 4.0, exclude=[a]) is b
        assert router.pick([a], 4.0) is a
        a.refused(4.0)
        assert router.pick([a, b], 4.0, key=b"k") is b, "of those that accept connections"
        assert router.pick([a], 4.0) is None
        a.accepted()
        for now in (5.0, 6.0, 7.0, 8.0):
            a.failed(now)


def test_least_work_counts_tokens_and_weights(loop: asyncio.AbstractEventLoop) -> None:
    a, b, router, book = endpoint(loop, 1), endpoint(loop, 2, weight=3.0), LeastWork(), Ledger()
    book.open(a, 100.0)
    assert router.pick([a, b], 0.0, work=10.0) is b
    book.open(b, 200.0)
    assert router.pick([a, b], 0.0, work=10.0) is b, "three times the weight may have three times the work"
    book.open(b, 200.0)
    assert router.pick([a, b], 0.0, work=10.0) is a


def test_least_work_takes_turns_when_all_are_equal(loop: asyncio.AbstractEventLoop) -> None:
    all_, router = [endpoint(loop, n) for n in range(1, 4)], LeastWork()
    assert {router.pick(all_, 0.0) for _ in range(3)} == set(all_)


def test_least_work_follows_weights_when_nobody_has_anything_to_do(loop: asyncio.AbstractEventLoop) -> None:
    """A canary of small weight gets its share also where one request comes at a time."""
    a, b, router = endpoint(loop, 1, weight=1.0), endpoint(loop, 2, weight=9.0), LeastWork()
    picks = [router.pick([a, b], 0.0, work=50.0) for _ in range(100)]
    assert (picks.count(a), picks.count(b)) == (10, 90)


@pytest.mark.parametrize("way", ["probes", "trial", "undrained", "added"])
def test_whoever_comes_back_or_is_new_is_eased_in(loop: asyncio.AbstractEventLoop, way: str) -> None:
    e = endpoint(loop, weight=4.0, slow_start_s=10.0)
    assert e.share(0.0) == 4.0, "nobody is eased in when the proxy starts"
    if way == "probes":
        for health in (Health.ILL, Health.ILL, Health.WELL, Health.WELL):
            e.probed(health, 0.0)
    elif way == "trial":
        for _ in range(3):
            e.failed(0.0)
        e.succeeded()
    elif way == "undrained":
        leaving = Leaving([e], lambda endpoint, number: None)
        leaving.set(e, True, 1)
        leaving.set(e, False, 2)
    else:
        e.follow(None)
    shares = [e.share(now) for now in (100.0, 100.5, 105.0, 107.5, 110.0, 200.0)]
    assert shares == pytest.approx([0.4, 0.4, 2.0, 3.0, 4.0, 4.0])
    assert e.share(105.0) == 4.0, "once it is in, it is in"


def test_a_single_failure_does_not_ease_anybody_in(loop: asyncio.AbstractEventLoop) -> None:
    e = endpoint(loop, slow_start_s=10.0)
    e.failed(0.0)
    e.succeeded()
    assert e.share(0.0) == 1.0


def test_a_reload_takes_over_what_is_known_of_an_upstream(loop: asyncio.AbstractEventLoop) -> None:
    old, new = endpoint(loop, slow_start_s=10.0), endpoint(loop, slow_start_s=10.0)
    old.draining = old.proven = True
    for _ in range(3):
        old.failed(5.0)
    old.failed(5.0)
    new.follow(old)
    assert new.standing.breaks_off(14.9)
    assert not new.standing.admits(14.9)
    assert new.standing.admits(15.0)
    assert (new.draining, new.proven, new.standing.failures_in_row) == (True, True, 4)
    assert new.share(6.0) == 1.0


def test_a_drained_upstream_gets_nothing_even_as_the_last_resort(loop: asyncio.AbstractEventLoop) -> None:
    a, b, book, told = endpoint(loop, 1), endpoint(loop, 2), Ledger(), []
    leaving = Leaving([a, b], lambda endpoint, number: told.append((endpoint, number)))
    lease = book.open(a, 5.0)
    leaving.set(leaving.find("http://127.0.0.1:1/"), True, 7)
    assert (a.state(0.0), leaving.names) == (State.DRAINING, ("http://127.0.0.1:1",))
    b.overloaded(0.0, 5.0)
    for router in (LeastWork(), RoundRobin(), Sticky(), PrefixAffinity(max_blocks=64, max_load_factor=2.0)):
        assert router.pick([a, b], 1.0, key=b"k") is b
        assert router.pick([a, b], 1.0, key=b"k", exclude=[b]) is None
    leaving.look()
    assert told == []
    lease.release()
    leaving.look()
    leaving.look()
    assert (a.state(0.0), told) == (State.DRAINED, [(a, 7)])
    leaving.set(a, False, 8)
    assert (a.state(0.0), leaving.names) == (State.UP, ())
    with pytest.raises(UnknownUpstream, match=r"http://127.0.0.1:1, http://127.0.0.1:2"):
        leaving.find("http://other")


def test_failing_fast_does_not_look_like_being_fast(loop: asyncio.AbstractEventLoop) -> None:
    bad, good, router, book = endpoint(loop, 1), endpoint(loop, 2), LeastWork(), Ledger()
    for _ in range(10):
        bad.errored()
    for _ in range(8):
        book.open(good, 100.0)
    assert router.pick([bad, good], 0.0, work=100.0) is good


def test_round_robin_follows_weights(loop: asyncio.AbstractEventLoop) -> None:
    a, b, router = endpoint(loop, 1, weight=1.0), endpoint(loop, 2, weight=3.0), RoundRobin()
    picks = [router.pick([a, b], 0.0) for _ in range(8)]
    assert picks.count(b) == 6


def test_overloaded_ones_are_the_last_resort_and_excluded_ones_never(loop: asyncio.AbstractEventLoop) -> None:
    a, b = endpoint(loop, 1), endpoint(loop, 2)
    for router in (LeastWork(), RoundRobin()):
        a.overloaded(0.0, 5.0)
        assert router.pick([a, b], 1.0) is b
        assert router.pick([a, b], 1.0, exclude=[b]) is a
        assert router.pick([a, b], 1.0, exclude=[a, b]) is None


@given(st.lists(st.sampled_from(["grant", "release", "again", "move"]), max_size=60))
def test_leases_add_up_to_nothing(steps: list[str]) -> None:
    loop = asyncio.new_event_loop()
    try:
        a, b, book, freed = endpoint(loop, 1), endpoint(loop, 2), Ledger(), []
        book.on_free = lambda: freed.append(True)
        held, old = [], []
        for n, step in enumerate(steps):
            if step == "grant":
                held.append(book.open(a if n % 2 else b, 0.1 * n, 1 + n % 2, n, float(n), n % 3 == 0))
            elif step == "release" and held:
                old.append(held.pop(n % len(held)))
                old[-1].release()
            elif step == "again" and old:
                old[n % len(old)].release()
                old[n % len(old)].move(a)
            elif step == "move" and held:
                held[n % len(held)].move(b if n % 2 else a)
            assert book.leases == len(held) == a.inflight + b.inflight == len(book.gate) + len(book.merge)
            assert sum(book.at.values()) == len(book.merge)
            book.check()
        for lease in held:
            lease.release()
        assert (book.leases, a.inflight, b.inflight, a.work, b.work) == (0, 0, 0, 0.0, 0.0)
        assert (book.gate.items, book.merge.items, book.gate.tokens, book.merge.tokens, book.at) == (
            0,
            0,
            0.0,
            0.0,
            {},
        )
        assert len(freed) == len(old) + len(held), "each tells its owner exactly once"
    finally:
        loop.close()


def test_retry_budget_is_a_share_of_the_traffic_with_a_floor() -> None:
    budget = RetryBudget(ratio=0.1, min_per_s=0.0, now=0.0)
    assert [budget.take(0.0), budget.take(0.0)] == [True, False], "one to begin with"
    for _ in range(25):
        budget.request()
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    floor = RetryBudget(ratio=0.0, min_per_s=2.0, now=0.0)
    assert sum(floor.take(0.0) for _ in range(10)) == 2
    assert sum(floor.take(1.0) for _ in range(10)) == 2
    assert sum(floor.take(3600.0) for _ in range(100)) == 20, "a quiet hour does not pay for a storm"
    assert not RetryBudget(ratio=0.0, min_per_s=0.0, now=0.0).take(1e9)
