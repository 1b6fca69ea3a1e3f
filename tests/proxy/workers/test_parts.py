"""The parts of several workers that need no processes: messages, shares, sums, and following a leader."""

from __future__ import annotations

import socket
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.load import Load
from controller.observation import Observation, Result
from controller.shared import Follower, Leader, orders
from controller.slo import SLO
from policies.base import Job
from proxy.config.model import Config
from proxy.config.rules import controller_for
from proxy.config.share import Share
from proxy.config.show import revealed
from proxy.observe.instruments import CounterFamily, HistogramFamily
from proxy.workers.pools import LedPool
from proxy.workers.protocol import MAX_MESSAGE_BYTES, Channel, ProtocolError, frame
from proxy.workers.rows import observation_of, row_of
from proxy.workers.shares import share_out
from proxy.workers.supervisor import Backoff

FULL: dict[str, Any] = {
    "admin": {"token": "0123456789abcdef", "host": "127.0.0.1"},
    "workers": 3,
    "keys": [{"name": "a", "hash": "a" * 64, "limits": {"requests_per_minute": 60}}],
    "pools": [
        {
            "name": "chat",
            "upstreams": [{"url": "http://a:1", "api_key": "sk-secret"}],
            "slo": {"e2e_ms": 900},
            "setpoints": {"max_batch_size": {"initial": 9, "max": 64}},
        }
    ],
}


def config(**pool: Any) -> Config:
    return Config.model_validate({"upstreams": ["http://a:1"], "slo": {"e2e_ms": 900}, **pool})


def observation(batch: int = 4, done: float = 2.0) -> Observation:
    return Observation("default", 1.0, done, Result.OK, 0, dispatched=1.1, batch=batch, upstream="http://a:1")


# -- messages ------------------------------------------------------------------------------------------------


async def pair() -> tuple[Channel, Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    raw = theirs.dup()
    for sock in (ours, theirs):
        sock.setblocking(False)
    return await Channel.on(ours), await Channel.on(theirs), raw


async def test_messages_arrive_whole_and_in_order() -> None:
    here, there, raw = await pair()
    for number in range(3):
        here.send({"type": "n", "number": number, "text": "ü" * 100_000})
    assert [(await there.receive() or {})["number"] for _ in range(3)] == [0, 1, 2]
    here.close()
    raw.close()
    assert await there.receive() is None, "the end of the line is an end, not an error"
    there.send({"type": "n"})
    await there.flush()
    there.close()


@pytest.mark.parametrize(
    "wire",
    [(MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\1{", b"\0\0\0\2[]", b"\0\0\0\2{}"],
    ids=["too long", "no JSON", "no object", "no type"],
)
async def test_what_is_no_message_is_refused(wire: bytes) -> None:
    here, there, raw = await pair()
    raw.setblocking(True)
    raw.sendall(wire)
    with pytest.raises(ProtocolError):
        await here.receive()
    for end in (here, there, raw):
        end.close()


def test_a_frame_is_its_length_and_json() -> None:
    assert frame({"type": "x"}) == b'\0\0\0\x0c{"type":"x"}'


def test_an_observation_survives_the_way() -> None:
    assert observation_of(list(row_of(observation()))) == observation()


def test_a_configuration_survives_the_way_with_its_secrets() -> None:
    config = Config.model_validate(FULL)
    again = Config.model_validate(revealed(config))
    assert again == config
    assert again.admin.token is not None
    assert again.admin.token.get_secret_value() == "0123456789abcdef"


# -- shares --------------------------------------------------------------------------------------------------

DEMANDS = st.lists(st.integers(0, 500), min_size=1, max_size=16)


@given(st.integers(1, 1000), DEMANDS)
def test_shares_add_up_and_leave_nobody_without(total: int, demands: list[int]) -> None:
    parts = share_out(total, demands)
    assert sum(parts) == max(total, len(demands))
    assert min(parts) >= 1


@given(st.integers(1, 1000), DEMANDS)
def test_nobody_gets_less_than_wanted_while_another_has_more_than_its_equal_part(
    total: int, demands: list[int]
) -> None:
    parts = share_out(total, demands)
    for part, demand in zip(parts, demands, strict=True):
        if part < demand:
            assert part >= total // len(demands) or total < len(demands)


@pytest.mark.parametrize(
    ("total", "demands", "parts"),
    [
        (10, [0, 0, 0], [4, 3, 3]),
        (10, [1, 9], [1, 9]),
        (10, [20, 20], [5, 5]),
        (2, [5, 5, 5], [1, 1, 1]),
        (4, [], []),
    ],
)
def test_shares_follow_demand(total: int, demands: list[int], parts: list[int]) -> None:
    assert share_out(total, demands) == parts


def test_what_cannot_be_shared_live_is_split_evenly() -> None:
    assert [Share(number, 3).part(10) for number in range(3)] == [4, 3, 3]
    assert [Share(number, 4).part(2) for number in range(4)] == [1, 1, 1, 1]


# -- sums ----------------------------------------------------------------------------------------------------


def test_counters_of_several_processes_add_up() -> None:
    one, other = (CounterFamily("c", "", ("pool",)) for _ in range(2))
    one.labels("a").add(2)
    other.labels("a").add(3)
    other.labels("b").add(1)
    whole = one.blank()
    for part in (one, other):
        whole.absorb(part.dump())
    assert {values: cell.value for values, cell in whole.items()} == {("a",): 5.0, ("b",): 1.0}


def test_histograms_add_up_even_where_one_process_has_another_boundary() -> None:
    one, other = (HistogramFamily("h", "", ("pool",), (1.0, 2.0)) for _ in range(2))
    one.labels("a").observe(0.5)
    other.labels("a").observe(1.8)
    other.add_bound(1.5)
    other.labels("a").observe(1.2)
    other.labels("a").observe(9.0)
    whole = one.blank()
    for part in (one, other):
        whole.absorb(part.dump())
    cell = whole.labels("a")
    assert cell.cumulative() == [("1.0", 1.0), ("1.5", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert cell.total == 0.5 + 1.8 + 1.2 + 9.0


# -- leading and following ---------------------------------------------------------------------------------------


def test_a_follower_runs_under_what_the_leader_decided() -> None:
    pool = config().pools[0]
    leader, follower = controller_for(pool, 0.0, Leader), controller_for(pool, 0.0, Follower)
    leader.set_slo(SLO(e2e_s=0.5, quantile=0.9), 1.0, "admin:a")
    leader.set_law("step", {"admission": False}, 1.0, "admin:a")
    leader.pin({"max_batch_size": 10, "window_ms": 3}, 1.0, "admin:a")
    follower.adopt(orders(leader), 5, 1.0)
    assert (follower.slo, follower.law_name, follower.law_options) == (leader.slo, "step", {"admission": False})
    assert (follower.setpoints.max_batch_size, follower.setpoints.window_ms) == (5, 3.0)
    assert follower.setpoints.generation == leader.setpoints.generation


def test_a_follower_turns_no_knob_of_its_own_and_counts_arrivals() -> None:
    follower = controller_for(config(law="step").pools[0], 0.0, Follower)
    before = follower.setpoints
    for tick in range(1, 50):
        for _ in range(3):
            follower.admit(Job(str(tick), float(tick)), float(tick), Load())
            follower.observe(observation(done=tick + 5.0))
        assert follower.tick(float(tick), Load(queued=50)) is None
        assert follower.take_arrivals() == 3
    assert follower.setpoints is before
    assert follower.arrival_rate == pytest.approx(3.0)
    assert follower.take_arrivals() == 0


def report(inflight: int, queued: int, **upstream: Any) -> dict[str, Any]:
    state = {"url": "http://a:1", "state": "up", "inflight": inflight, "failure_rate": 0.0, "profile": "auto"}
    queue = {"requests": queued, "items": queued, "tokens": 1.5, "by_class": {"default": queued}, "oldest_age_s": 1.0,
             "ages_s": {"default": float(queued)}}  # fmt: skip
    stats = {"queue": queue, "inflight": inflight, "inflight_calls": inflight, "leases": inflight, "draining": False,
             "predictor": {"mode": "off"}, "upstreams": [state | upstream]}  # fmt: skip
    load = Load(queued=queued, inflight=inflight, slots=2, app_limited=True)
    return {"load": asdict(load), "own_load": asdict(load), "stats": stats, "arrivals": queued}


def led(**more: Any) -> LedPool:
    pool = config(**more).pools[0]
    return LedPool(pool, controller_for(pool, 0.0, Leader), lambda pool: None)


def test_a_led_pool_is_the_sum_of_what_workers_report() -> None:
    pool = led()
    pool.reported(0, report(2, 1))
    pool.reported(1, report(3, 4, state="ejected", failure_rate=0.5))
    load, stats = pool.load(1.0), pool.stats()
    assert (load.queued, load.inflight, load.slots, load.app_limited) == (5, 5, 4, True)
    assert stats["queue"]["by_class"]["default"] == 5
    assert stats["queue"]["ages_s"] == {"default": 4.0}
    assert stats["upstreams"] == [
        {"url": "http://a:1", "state": "ejected", "inflight": 5, "failure_rate": 0.5, "profile": "auto"}
    ]
    pool.lost(1)
    assert pool.load(1.0).inflight == 2


def test_places_are_shared_and_batches_are_not() -> None:
    gate = led(dispatch="gate", setpoints={"max_batch_size": {"initial": 10, "max": 64}, "window_ms": 0})
    gate.reported(0, report(1, 0))
    gate.reported(1, report(6, 9))
    assert gate.parts([0, 1]) == {0: 1, 1: 9}
    merge = led(dispatch="merge", setpoints={"max_batch_size": {"initial": 10, "max": 64}, "window_ms": 0})
    assert merge.parts([0, 1]) == {0: 10, 1: 10}


def test_who_ran_beside_a_request_counts_over_all_workers() -> None:
    pool = led(dispatch="gate")
    pool.reported(0, report(2, 0))
    pool.reported(1, report(3, 0))
    assert pool.observed(0, observation(batch=2)).batch == 5


def test_a_worker_that_keeps_dying_is_replaced_ever_more_slowly() -> None:
    backoff = Backoff(first_s=0.1, most_s=1.0, good_s=10.0)
    assert [round(backoff.after(1.0), 3) for _ in range(7)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.after(11.0) == 0.0
