"""Who is passed over: whoever fails fast, and whoever alone turns an errand away. Under a clock of the test's own."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.health import Health
from proxy.upstream.outgoing import Outgoing
from proxy.upstream.repute import Repute
from proxy.wire.base import Head
from proxy.wire.registry import detect


@pytest.fixture
def endpoints() -> list[Endpoint]:
    loop = asyncio.new_event_loop()
    made = []
    for port in (1, 2, 3):
        address = Address.of(f"http://127.0.0.1:{port}")
        made.append(Endpoint(address, ConnectionPool(loop, address, limit=8, idle_s=1.0)))
    loop.close()
    return made


def fails(endpoint: Endpoint, times: int) -> None:
    for _ in range(times):
        endpoint.errored()


def test_nobody_is_passed_over_without_a_reason(endpoints: list[Endpoint]) -> None:
    assert Repute().avoid(endpoints, None, 0.0) == ()
    fails(endpoints[0], 2)
    assert Repute().avoid(endpoints, None, 0.0) == (), "twice is nothing yet"


def test_who_fails_fast_is_looked_at_once_in_a_while(endpoints: list[Endpoint]) -> None:
    repute, (bad, *others) = Repute(), endpoints
    fails(bad, 20)
    looks = []
    for tenth in range(600):
        avoided = repute.avoid(endpoints, None, tenth / 10)
        if avoided == tuple(others):
            looks.append(tenth / 10)
            bad.errored()
            repute.answered(bad, well=False, now=tenth / 10)
        else:
            assert avoided == (bad,)
    assert 2 <= len(looks) <= 6
    assert all(later - sooner >= 2.0 for sooner, later in pairwise(looks))


def test_one_that_is_well_again_gets_its_share_back_soon(endpoints: list[Endpoint]) -> None:
    repute, bad = Repute(), endpoints[0]
    fails(bad, 20)
    repute.avoid(endpoints, None, 0.0)
    now = 2.5
    for _ in range(20):
        if bad in repute.avoid(endpoints, None, now):
            break
        bad.succeeded()
        bad.completed()
        repute.answered(bad, well=True, now=now)
        now += 0.01
    assert repute.avoid(endpoints, None, now) == ()


def test_where_all_fail_alike_nobody_is_passed_over(endpoints: list[Endpoint]) -> None:
    for each in endpoints:
        fails(each, 20)
    assert Repute().avoid(endpoints, None, 0.0) == ()


def test_the_last_one_that_may_be_asked_is_asked_however_it_fails(endpoints: list[Endpoint]) -> None:
    fails(endpoints[0], 20)
    endpoints[1].standing.refused(0.0)
    endpoints[2].draining = True
    assert Repute().avoid(endpoints, None, 0.0) == ()


def test_a_few_failures_fade(endpoints: list[Endpoint]) -> None:
    repute = Repute()
    fails(endpoints[0], 2)
    for second in range(120):
        repute.avoid(endpoints, None, 1.0 + second)
    assert endpoints[0].failure_rate < 1e-2


def breaks(endpoint: Endpoint, *at: float) -> None:
    for now in at:
        endpoint.failed(now, now)


def test_who_broke_off_twice_in_a_row_is_passed_over_for_a_while(endpoints: list[Endpoint]) -> None:
    repute, bad = Repute(), endpoints[0]
    breaks(bad, 1.0)
    assert repute.avoid(endpoints, None, 1.0) == (), "once is nothing yet"
    breaks(bad, 2.0)
    assert repute.avoid(endpoints, None, 2.0) == (bad,)
    assert repute.avoid(endpoints, None, 4.0) == tuple(endpoints[1:]), "it is looked at"
    assert repute.avoid(endpoints, None, 5.0) == (bad,)
    assert repute.avoid(endpoints, None, 12.0) == (), "two breaks say nothing for long"
    breaks(bad, 12.5)
    assert repute.avoid(endpoints, None, 12.5) == (), "and a third one long afterwards begins another row"


@pytest.mark.parametrize("how", ["answer", "health check", "connection", "restart"])
def test_who_is_back_has_no_row_of_breaks(endpoints: list[Endpoint], how: str) -> None:
    repute, bad = Repute(), endpoints[0]
    breaks(bad, 1.0, 2.0)
    if how == "answer":
        bad.succeeded()
        assert repute.avoid(endpoints, None, 2.0) == (bad,), "its end may still break off"
        bad.completed()
    elif how == "health check":
        bad.probed(Health.WELL, 2.0, proves=False)
        assert repute.avoid(endpoints, None, 2.0) == (bad,), "an open port is no news of one that breaks off"
        bad.probed(Health.WELL, 2.0, proves=True)
    elif how == "connection":
        bad.refused(2.0)
        bad.accepted()
    else:
        bad.refused(2.0)
        bad.probed(Health.WELL, 2.0, proves=False)
    assert repute.avoid(endpoints, None, 2.0) == ()


def test_one_event_is_one_break_and_patience_that_ran_out_is_none(endpoints: list[Endpoint]) -> None:
    bad, slow = endpoints[:2]
    for _ in range(5):
        bad.failed(2.0, 1.0)
        bad.spoiled(2.0, 1.0)
    assert not bad.standing.breaks_off(2.0)
    for now in (1.0, 3.0):
        slow.failed(now, now, timeout=True)
    assert not slow.standing.breaks_off(3.0)
    bad.spoiled(3.0, 2.5)
    assert bad.standing.breaks_off(3.0)


def test_breaks_alone_leave_half_of_the_upstreams_at_least(endpoints: list[Endpoint]) -> None:
    repute = Repute()
    for each in endpoints[:2]:
        breaks(each, 1.0, 2.0)
    assert repute.avoid(endpoints, None, 2.0) == (endpoints[0],)
    breaks(endpoints[2], 1.0, 2.0)
    assert repute.avoid(endpoints, None, 2.0) == (), "where all break off nobody is passed over"


def test_nothing_leaves_its_home_to_look_at_another_one(endpoints: list[Endpoint]) -> None:
    repute, bad, good = Repute(), endpoints[0], endpoints[1]
    fails(bad, 20)
    assert repute.avoid(endpoints, None, 1.0, homed=True) == (bad,)
    assert repute.avoid(endpoints, None, 3.0, homed=True) == (), "no other is passed over in its favour"
    repute.asked(good, 3.0)
    assert repute.avoid(endpoints, None, 3.0, homed=True) == (), "nobody has looked yet"
    repute.asked(bad, 3.0)
    assert repute.avoid(endpoints, None, 3.1, homed=True) == (bad,)
    assert repute.avoid(endpoints, None, 5.0, homed=True) == ()


def test_what_was_sent_before_a_look_does_not_put_off_the_next_one(endpoints: list[Endpoint]) -> None:
    repute, bad = Repute(), endpoints[0]
    fails(bad, 20)
    repute.avoid(endpoints, None, 1.0)
    for _ in range(50):
        repute.answered(bad, well=False, now=1.5, since=0.5)
    assert repute.avoid(endpoints, None, 3.0) == tuple(endpoints[1:])


def test_a_misfit_is_passed_over_for_its_errand_only_and_tried_again(endpoints: list[Endpoint]) -> None:
    repute, misfit = Repute(), endpoints[0]
    repute.misfit(misfit, "chats", 0.0)
    assert repute.avoid(endpoints, "chats", 1.0) == (misfit,)
    assert repute.avoid(endpoints, "vectors", 1.0) == ()
    assert repute.avoid(endpoints, None, 1.0) == ()
    assert repute.avoid(endpoints, "chats", 11.0) == (), "one goes there to see"
    assert repute.avoid(endpoints, "chats", 11.1) == (misfit,), "and no second one meanwhile"
    repute.served(misfit, "chats")
    assert repute.avoid(endpoints, "chats", 11.2) == ()
    assert len(repute) == 0


def test_errands_are_forgotten_the_oldest_first(endpoints: list[Endpoint]) -> None:
    repute = Repute()
    for number in range(5000):
        repute.misfit(endpoints[0], number, 0.0)
    assert len(repute) <= 1024
    assert repute.avoid(endpoints, 4999, 0.0) == (endpoints[0],)
    assert repute.avoid(endpoints, 0, 0.0) == ()


def outgoing(
    body: bytes, path: str = "/v1/responses", authorization: bytes | None = None, lines: bytes = b""
) -> Outgoing:
    wire, route = detect("POST", path)
    sent = Outgoing(b"POST", path.encode(), lines, body=body, authorization=authorization, replayable=True)
    sent.means(wire, wire.parse(route, Head("POST", path, path, []), body))
    return sent


def test_an_errand_is_what_the_client_chose_and_holds_no_credential() -> None:
    same = outgoing(b'{"model":"m","input":"a"}', authorization=b"Bearer secret-one").errand()
    assert same == outgoing(b'{"model":"m","input":"b"}', authorization=b"Bearer secret-one").errand()
    others = [
        outgoing(b'{"model":"n","input":"a"}', authorization=b"Bearer secret-one").errand(),
        outgoing(b'{"model":"m","input":"a"}', authorization=b"Bearer secret-two").errand(),
        outgoing(b'{"model":"m","input":"a"}', lines=b"X-API-Key: secret-one\r\n").errand(),
        outgoing(b'{"model":"m","messages":[]}', "/v1/chat/completions", b"Bearer secret-one").errand(),
    ]
    assert len({same, *others}) == 5
    assert "secret" not in repr([same, *others])


def test_what_refers_to_a_state_proves_nothing_about_others() -> None:
    assert outgoing(b'{"model":"m","input":"a","previous_response_id":"resp_1"}').errand() is None
