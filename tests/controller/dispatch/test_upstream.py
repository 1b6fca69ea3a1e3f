from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dispatch.gate_upstream import GateUpstream
from controller.dispatch.merge_upstream import MergeUpstream
from controller.load import Load
from controller.measure.promises import Promises
from controller.slo import SLO
from controller.verdict import Choice
from tests.controller.build import job, observation

E2E = SLO(e2e_s=10.0)
PROMISED = Promises(E2E)


def taught(depth: int = 1, call_s: float = 1.0) -> MergeUpstream:
    """An upstream that takes 1 s a call; with a depth of 2 each call waits there for the one before it."""
    upstream = MergeUpstream(0.01)
    for index in range(40):
        done = call_s * (1.0 + index)
        for _ in range(4):
            upstream.observe(observation(call_s * min(depth, index + 1), done=done, batch=4), (), SLO())
    return upstream


def test_a_call_teaches_once_however_many_report_it() -> None:
    assert taught().model.samples == 40


def test_a_call_behind_another_one_at_the_same_upstream_began_when_that_one_ended() -> None:
    assert taught(depth=2).model.predict(4) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("queue_s", "worn"), [(0.0, False), (8.0, True)])
def test_only_answers_that_were_close_wear_the_margin_down(queue_s: float, worn: bool) -> None:
    upstream = taught()
    upstream.choose([job(41.0)], 8, 41.0, Load(queued=1), PROMISED, form=True, shed=True)
    before = upstream.model.whole.theta
    for index in range(40):
        upstream.observe(observation(0.9, queue=queue_s, done=50.0 + index), (), E2E)
    after = upstream.model.whole.theta
    assert (after < before) is worn
    upstream.observe(observation(0.9, queue=11.0, done=99.0), ("e2e",), E2E)
    assert upstream.model.whole.theta > after


def test_where_answers_differ_in_length_every_one_in_time_wears_the_margin_down() -> None:
    upstream = taught()
    upstream.choose([job(41.0)], 8, 41.0, Load(queued=1), PROMISED, form=True, shed=True)
    for index in range(40):
        upstream.observe(
            observation(0.9, done=50.0 + index, batch=1, tokens=20 + 200 * (index % 2)), (), PROMISED.pool
        )
    before = upstream.model.whole.theta
    upstream.observe(observation(0.9, done=99.0, batch=1, tokens=20), (), E2E)
    assert upstream.model.whole.theta < before


def test_a_batch_is_not_formed_behind_a_long_call() -> None:
    upstream = taught()
    busy = Load(queued=4, inflight=4, inflight_calls=1, running=(40.0,), running_batches=(4,), slots=2)
    choice = upstream.choose([job(40.0)] * 4, 8, 40.1, busy, PROMISED, form=True, shed=True)
    assert choice == Choice(0, ())
    assert upstream.choose([job(40.0)] * 4, 8, 41.5, Load(queued=4), PROMISED, form=True, shed=True).take == 4


def test_an_estimate_that_condemns_everybody_is_put_to_the_test() -> None:
    upstream = taught(call_s=1000.0)
    choice = upstream.choose([job(41.0), job(41.2)], 8, 41.5, Load(queued=2), PROMISED, form=True, shed=True)
    assert choice == Choice(1, (0,))


def test_an_idle_engine_is_always_sent_somebody() -> None:
    upstream = GateUpstream(0.01)
    for index in range(40):
        upstream.observe(observation(100.0, done=100.0 + index, first=90.0, tokens=50), ("e2e",), E2E)
    hopeless = [job(0.0)] * 3
    assert upstream.choose(hopeless, 8, 150.0, Load(queued=3), PROMISED, form=True, shed=True).take == 3
    busy = Load(queued=3, inflight=2, inflight_calls=2)
    assert upstream.choose(hopeless, 8, 150.0, busy, PROMISED, form=True, shed=True) == Choice(0, (0, 1, 2))


def test_a_batch_is_counted_in_items_and_chosen_in_whole_jobs() -> None:
    upstream = taught()
    waiting = [job(41.0, items=3), job(41.0, items=3), job(41.0, items=3), job(41.0)]
    choice = upstream.choose(waiting, 8, 41.5, Load(queued=10), PROMISED, form=True, shed=True)
    assert [waiting[index].items for index in choice.sent(4)] == [3, 3, 1]
    alone = upstream.choose([job(41.0, items=20)], 8, 41.5, Load(queued=20), PROMISED, form=True, shed=True)
    assert alone.take == 1


@pytest.mark.parametrize("claimed", [10**17, 2**63, 2**200, 0, -5])
@pytest.mark.parametrize("calls", [0, 5])
def test_an_absurd_number_of_items_costs_no_more_than_a_full_batch(claimed: int, calls: int) -> None:
    upstream = taught() if calls else MergeUpstream(0.005)
    waiting = [job(41.0), job(41.0, items=claimed), *[job(41.0, items=3) for _ in range(300)]]
    choice = upstream.choose(waiting, 8, 41.0, Load(queued=len(waiting)), PROMISED, form=True, shed=True)
    assert 1 <= choice.take <= 8
    alone = upstream.choose([job(41.0, items=claimed)], 8, 41.0, Load(queued=1), PROMISED, form=True, shed=True)
    assert alone.take == 1


def mixed() -> tuple[MergeUpstream, float]:
    """An upstream whose answers have 20 to 200 tokens, so that a call of four takes about two seconds; and when."""
    upstream, now = MergeUpstream(0.01), 0.0
    for index in range(120):
        lengths = [20, 200 if index % 2 else 60, 30, 25]
        now += 0.01 * max(lengths)
        for tokens in lengths:
            upstream.observe(observation(0.01 * max(lengths), done=now, batch=4, tokens=tokens), (), SLO())
    assert upstream.weighs_waiting
    return upstream, now


@pytest.mark.parametrize("shed", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_was_asked_before_does_not_change_a_forecast(order: tuple[int, ...], shed: bool) -> None:
    """A newcomer behind six that wait, after choices among others, under another SLO, or of a first-come law."""
    upstream, now = mixed()
    waiting = [job(now - 2.5 + 0.1 * index) for index in range(6)]
    running = Load(queued=6, inflight=4, inflight_calls=1, running=(now - 0.2,), running_batches=(4,))
    promised, other = Promises(SLO(e2e_s=4.0)), Promises(SLO(e2e_s=0.5))
    unrelated = (
        lambda: upstream.choose([job(now)] * 6, 16, now, Load(queued=6), other, form=True, shed=shed),
        lambda: upstream.choose([], 16, now, Load(), promised, form=False, shed=shed),
        lambda: upstream.forecast(job(now), 16, now, running, other, waiting[:2], form=False),
    )
    untouched = upstream.forecast(job(now), 16, now, running, promised, waiting, form=True)
    for index in order:
        unrelated[index]()
    after = upstream.forecast(job(now), 16, now, running, promised, waiting, form=True)
    assert untouched is not None
    assert after == untouched


def test_who_will_be_shed_does_not_keep_out_who_comes_in_their_stead() -> None:
    upstream, now = mixed()
    stale = [job(now - 2.5) for _ in range(6)]
    running = Load(queued=6, inflight=4, inflight_calls=1, running=(now - 0.2,), running_batches=(4,))
    unaware, aware = [
        upstream.forecast(job(now), 16, now, running, Promises(SLO(e2e_s=4.0)), waiting, form=True)
        for waiting in ((), stale)
    ]
    assert unaware is not None
    assert aware is not None
    assert aware.done_s < unaware.done_s


def test_a_size_that_never_varies_is_tried_one_larger_now_and_then() -> None:
    """Otherwise its cost could not be learned, and a size that was never tried might look bad for ever."""
    upstream = taught()
    waiting = [job(41.0) for _ in range(4)]
    patient = Promises(SLO(e2e_s=30.0))
    usual = upstream.choose(waiting, 4, 41.5, Load(queued=4), patient, form=True, shed=True)
    assert usual.take == 4
    more = [job(41.0) for _ in range(20)]
    sizes = set()
    for index in range(40):
        choice = upstream.choose(more, 16, 41.5 + index, Load(queued=20), patient, form=True, shed=True)
        sizes.add(choice.take)
        for _ in range(choice.take):
            upstream.observe(observation(1.0, done=42.5 + index, batch=choice.take), (), patient.pool)
    assert len(sizes) > 1


def test_streams_that_follow_plain_answers_are_no_sign_of_full_memory() -> None:
    """What streams usually wait is not known from answers that came whole; nothing about the first is unusual."""
    upstream = GateUpstream(0.01)
    for index in range(60):
        upstream.observe(observation(0.001, done=1.0 + index), (), E2E)
    busy = Load(inflight=8, inflight_calls=8, inflight_tokens=2_000.0)
    for index in range(60):
        now = 100.0 + index
        assert upstream.choose([job(now, prompt_tokens=16)], 64, now, busy, PROMISED, form=True, shed=True).take == 1
        upstream.observe(
            observation(0.5, done=now + 0.5, first=0.002 + 0.0007 * (index % 37), tokens=50), (), PROMISED.pool
        )
        upstream.tick(now)
        assert upstream.memory.limit_tokens is None


def stream(upstream: GateUpstream, streams: list[tuple[float, int, float]]) -> None:
    """Streams of 50 tokens, by (let in at, sequences in flight then, seconds a token), as they come and go."""
    ends = []
    for now, together, pace_s in streams:
        done = now + 0.02 + 49 * pace_s
        obs = observation(done - now, done=done, first=0.02, tokens=50, batch=together)
        ends.append((done, 1, together, replace(obs, dispatched=now)))
    begins = [(now, 0, together, None) for now, together, _ in streams]
    begun: list[float] = []
    for now, _, together, obs in sorted([*begins, *ends], key=lambda event: event[:2]):
        while begun and begun[0] + 0.02 <= now:
            upstream.first_token("u", begun[0], begun.pop(0) + 0.02)
        if obs is not None:
            upstream.observe(obs, (), E2E)
            upstream.tick(now)
            continue
        load = Load(inflight=together - 1, inflight_calls=together - 1, inflight_tokens=66.0 * (together - 1))
        waiting = [job(now, prompt_tokens=16)]
        assert upstream.choose(waiting, 2048, now, load, PROMISED, form=False, shed=True).take == 1
        upstream.sent(waiting[0], "u", now, load.inflight_tokens, streamed=True)
        begun.append(now)


def test_streams_that_all_slow_down_as_more_run_together_are_no_sign_of_full_memory() -> None:
    """More sequences a step make every step longer. That is what batches cost, and no reason to send fewer."""
    upstream = GateUpstream(0.01)
    stream(upstream, [(10.0 + 0.1 * index, 8, 0.010) for index in range(200)])
    stream(upstream, [(100.0 + 0.1 * index, 256, 0.025 + 0.0001 * (index % 7)) for index in range(400)])
    assert upstream.memory.limit_tokens is None


def test_streams_that_are_slow_while_others_are_not_were_thrown_out() -> None:
    upstream = GateUpstream(0.01)
    stream(upstream, [(10.0 + 0.1 * index, 8, 0.010) for index in range(200)])
    crowded = [(100.0 + 0.1 * index, *((60, 0.040) if index % 3 == 0 else (20, 0.011))) for index in range(200)]
    stream(upstream, crowded)
    limit = upstream.memory.limit_tokens
    assert limit is not None
    assert 66.0 * 20 < limit < 66.0 * 60


def read_in_turn(upstream: GateUpstream, sent: list[tuple[float, int]]) -> None:
    """Prompts sent at (seconds, tokens), read one after the other at 0.1 ms a token, and 20 tokens for each.

    A token takes 10 ms, and as much longer as prompts are read in between. Nobody ever waits for memory.
    """
    begins: list[tuple[float, float]] = []
    free = 0.0
    for now, tokens in sent:
        begins.append((max(free, now) + 0.008, 1e-4 * tokens))
        free = sum(begins[-1])
    events: list[tuple[float, int, int]] = []
    firsts: list[float] = []
    for index, ((now, _), (begin, seconds)) in enumerate(zip(sent, begins, strict=True)):
        first = begin + seconds
        meanwhile = sum([more for at, more in begins[index + 1 : index + 12] if at < first + 0.19])
        firsts.append(first)
        events += [(now, 0, index), (first, 1, index), (first + 0.19 + meanwhile, 2, index)]
    held: dict[int, float] = {}
    for now, kind, index in sorted(events):
        at, tokens = sent[index]
        if kind == 0:
            upstream.sent(job(at, prompt_tokens=tokens), "u", now, sum(held.values()) + 1.0, streamed=True)
            held[index] = tokens + 20.0
        elif kind == 1:
            upstream.first_token("u", at, now)
        else:
            obs = observation(now - at, done=now, first=firsts[index] - at, tokens=20, batch=len(held))
            upstream.observe(replace(obs, dispatched=at, prompt_tokens=tokens), (), E2E)
            upstream.tick(now)
            del held[index]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.03, 0.05]), longest=st.integers(1000, 4000))
def test_what_prompts_explain_is_no_sign_of_full_memory(seed: int, share: float, longest: int) -> None:
    """A dozen tokens that wait for a few thousand, and streams with these in between: all that is reading."""
    rng, now = random.Random(seed), 10.0
    sent = []
    for _ in range(500):
        now += rng.expovariate(12.0)
        sent.append((now, rng.randint(longest // 3, longest) if rng.random() < share else rng.randint(10, 13)))
    upstream = GateUpstream(0.01)
    read_in_turn(upstream, sent)
    assert upstream.memory.limit_tokens is None
    assert upstream.model.first.wait_s(0.99) < 0.15
    assert upstream.model.first.ahead_s(now + 30.0) == 0.0


def test_who_waits_behind_the_first_prompt_of_its_length_says_nothing_of_the_rest() -> None:
    """Nobody knows yet how long such a prompt takes. It passed for a jam, for which a dozen tokens were refused."""
    upstream = GateUpstream(0.01)
    short = [(10.0 + 0.2 * index, 12) for index in range(60)]
    first_long = [(22.0, 6000), *[(22.05 + 0.02 * index, 12) for index in range(20)]]
    read_in_turn(upstream, [*short, *first_long])
    assert upstream.model.first.wait_s(0.99) < 0.05


def test_a_prompt_of_known_length_that_waits_for_others_to_finish_waits_for_memory() -> None:
    upstream = GateUpstream(0.01)
    for index in range(300):
        now, tokens = 10.0 + index, 4000.0 if index % 2 else 1000.0
        first = 2.0 if index % 2 else 0.05
        upstream.sent(job(now, prompt_tokens=100), "u", now, tokens, streamed=True)
        upstream.first_token("u", now, now + first)
        upstream.observe(
            replace(observation(first + 0.2, done=now + first + 0.2, first=first, tokens=20)), (), PROMISED.pool
        )
        upstream.tick(now)
    limit = upstream.memory.limit_tokens
    assert limit is not None
    assert 1000.0 < limit < 4000.0
