"""What is counted is what happened, under names operators can rely on."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controller.measure.latency import violations
from controller.observation import Observation, Result
from controller.slo import SLO
from proxy import outcome
from proxy.config.model import Config
from proxy.observe.instruments import Histogram, HistogramFamily
from proxy.observe.metrics import NO_POOL, OTHER, SHED_REASONS, Metrics


def make(**slo: float) -> Metrics:
    config = Config.model_validate({"upstreams": ["http://a:1"], "slo": slo})
    return Metrics(config.pools, process=False)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.render()[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(metrics: Metrics, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (key, have), value in samples(metrics).items() if key == name and wanted <= have)


def served(**changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "pool": "default", "arrival": 10.0, "dispatched": 10.1, "first_byte": 10.4, "last_byte": 11.4, "done": 11.5,
        "result": Result.OK, "generation": 0, "streamed": True, "output_tokens": 11, "prompt_tokens": 7,
        "upstream": "http://a:1",
    }  # fmt: skip
    return Observation(**(fields | changes))


def test_a_served_stream_is_counted_everywhere_once() -> None:
    metrics = make(ttft_ms=500)
    metrics.request_finished(served(), "chat.completions", 200)
    assert total(metrics, "trimtab_requests_total") == 1
    assert total(metrics, "trimtab_requests_total", outcome="ok", code="200", route="chat.completions") == 1
    for name, value in (
        ("request_duration", 1.5),
        ("time_to_first_token", 0.4),
        ("queue_duration", 0.1),
        ("inter_token_latency", 0.1),
    ):
        assert total(metrics, f"trimtab_{name}_seconds_count") == 1
        assert total(metrics, f"trimtab_{name}_seconds_sum") == pytest.approx(value)
    assert total(metrics, "trimtab_output_tokens_total") == 11
    assert total(metrics, "trimtab_prompt_tokens_total") == 7
    assert total(metrics, "trimtab_upstream_requests_total", upstream="http://a:1", outcome="ok") == 1


def test_tokens_of_a_request_that_was_turned_away_are_not_counted() -> None:
    metrics = make(ttft_ms=500)
    refused = served(result=Result.REFUSED, dispatched=None, first_byte=None, last_byte=None, output_tokens=0)
    metrics.request_finished(refused, "chat.completions", 503)
    assert total(metrics, "trimtab_requests_total", outcome="refused") == 1
    assert total(metrics, "trimtab_prompt_tokens_total") == 0


@pytest.mark.parametrize(
    ("result", "judged", "missed", "queued"),
    [
        (Result.OK, 1, 0, 1),
        (Result.TIMEOUT, 1, 1, 1),
        (Result.FAILED, 0, 0, 1),
        (Result.SHED, 0, 0, 1),
        (Result.REFUSED, 0, 0, 0),
        (Result.CANCELLED, 0, 0, 1),
    ],
)
def test_only_what_was_promised_is_judged(result: Result, judged: int, missed: int, queued: int) -> None:
    metrics = make(e2e_ms=2_000)
    metrics.request_finished(served(result=result), "chat.completions", 200)
    assert total(metrics, "trimtab_slo_requests_total", slo="e2e") == judged
    assert total(metrics, "trimtab_slo_violations_total", slo="e2e") == missed
    assert total(metrics, "trimtab_queue_duration_seconds_count") == queued


_SECONDS = st.none() | st.floats(0.001, 5.0)


@given(
    slo=st.builds(SLO, e2e_s=_SECONDS, ttft_s=_SECONDS, tpot_s=_SECONDS, queue_s=_SECONDS),
    result=st.sampled_from(list(Result)),
    waited=st.floats(0.0, 2.0),
    took=st.floats(0.0, 4.0),
    tokens=st.integers(0, 3),
    streamed=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_requests_are_judged_as_the_promise_judges_them(
    slo: SLO, result: Result, waited: float, took: float, tokens: int, streamed: bool
) -> None:
    metrics = make()
    metrics.watch("default", lambda: slo)
    obs = served(result=result, dispatched=10.0 + waited, first_byte=10.0 + waited, last_byte=10.0 + waited + took,
                 done=10.0 + waited + took, output_tokens=tokens, streamed=streamed)  # fmt: skip
    metrics.request_finished(obs, "completions", 200)
    metrics.settle()
    missed = {name for name, _ in slo.targets() if metrics.families.missed.labels("default", name).value}
    assert missed == set(violations(slo, obs))
    judged = {name for name, _ in slo.targets() if metrics.families.judged.labels("default", name).value}
    assert missed <= judged


def test_the_promise_in_force_is_the_one_that_counts() -> None:
    metrics = make(e2e_ms=2_000)
    now = SLO(e2e_s=1.0)
    metrics.watch("default", lambda: now)
    metrics.request_finished(served(), "chat.completions", 200)
    assert total(metrics, "trimtab_slo_violations_total", slo="e2e") == 1


def test_a_bucket_ends_exactly_at_each_target() -> None:
    metrics = make(ttft_ms=333, tpot_ms=33, e2e_ms=3_333, queue_ms=44)
    for name, bound in (
        ("time_to_first_token", "0.333"),
        ("inter_token_latency", "0.033"),
        ("request_duration", "3.333"),
        ("queue_duration", "0.044"),
    ):
        assert any(
            key == f"trimtab_{name}_seconds_bucket" and ("le", bound) in labels for key, labels in samples(metrics)
        )


@given(
    before=st.lists(st.floats(0, 10), max_size=30),
    after=st.lists(st.floats(0, 10), max_size=30),
    bound=st.floats(0.001, 9.0),
)
@settings(max_examples=60, deadline=None)
def test_cumulative_counts_never_fall_when_a_boundary_is_added(
    before: list[float], after: list[float], bound: float
) -> None:
    family = HistogramFamily("h", "h", (), (1.0, 5.0))
    cell = family.labels()
    for value in before:
        cell.observe(value)
    old = dict(cell.cumulative())
    family.add_bound(bound)
    for value in after:
        cell.observe(value)
    new = cell.cumulative()
    assert [count for _, count in new] == sorted(count for _, count in new)
    assert all(dict(new)[le] >= count for le, count in old.items())
    assert new[-1][1] == len(before) + len(after)
    assert dict(new)[repr(bound)] >= sum(value <= bound for value in after)


def test_boundaries_do_not_grow_for_ever() -> None:
    family = HistogramFamily("h", "h", (), (1.0,))
    made = [family.add_bound(2.0 + index) for index in range(100)]
    assert sum(made) == len(family.bounds) - 1 < 50
    assert family.add_bound(1.0) is True


def test_a_value_on_the_boundary_is_within_it() -> None:
    cell = Histogram((1.0, 2.0))
    cell.observe(1.0)
    assert cell.cumulative() == [("1.0", 1.0), ("2.0", 1.0), ("+Inf", 1.0)]


def test_series_exist_before_anything_happens() -> None:
    seen = samples(make(ttft_ms=500))
    for name, labels in [
        (
            "trimtab_requests_total",
            {"pool": "default", "route": "chat.completions", "class": "default", "outcome": "refused", "code": "503"},
        ),
        ("trimtab_slo_violations_total", {"pool": "default", "slo": "ttft"}),
        ("trimtab_shed_total", {"pool": "default", "reason": "queue_full"}),
        ("trimtab_batches_closed_total", {"pool": "default", "reason": "window"}),
        ("trimtab_config_reloads_total", {"result": "failed"}),
    ]:
        assert seen[name, frozenset(labels.items())] == 0


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8), st.integers(-5, 2000)), max_size=200))
@settings(max_examples=25, deadline=None)
def test_labels_stay_bounded_whatever_comes(calls: list[tuple[str, str, int]]) -> None:
    metrics = make()
    start = len(metrics.families.requests)
    for index, (klass, pool, code) in enumerate(calls):
        metrics.request_finished(served(klass=klass, pool=pool), f"route-{index}", code)
    metrics.settle()
    assert len(metrics.families.requests) - start <= 70 * 10
    assert total(metrics, "trimtab_requests_total") == len(calls)
    assert {key[2] for key, _ in metrics.families.requests.items()} <= {
        "default",
        "interactive",
        "batch",
        OTHER,
        NO_POOL,
    }


def test_rules_beyond_reason_fold_into_other() -> None:
    metrics = make()
    for index in range(200):
        metrics.decided("default", f"rule-{index}")
    assert total(metrics, "trimtab_decisions_total") == 200
    assert total(metrics, "trimtab_decisions_total", rule=OTHER) == 200 - 64


@given(st.lists(st.sampled_from(list(Result)), max_size=60))
@settings(max_examples=25, deadline=None)
def test_outcomes_add_up_to_requests(results: list[Result]) -> None:
    metrics = make()
    for result in results:
        metrics.request_finished(served(result=result), "completions", 200)
    have = Counter(results)
    for result in Result:
        assert total(metrics, "trimtab_requests_total", outcome=result.value) == have[result]


def test_batches_and_reasons() -> None:
    metrics = make()
    metrics.batch_dispatched("default", 8, "full")
    metrics.batch_dispatched("default", 3, "window")
    metrics.batch_dispatched("default", 1, "something new")
    assert total(metrics, "trimtab_batch_size_count") == 3
    assert total(metrics, "trimtab_batch_size_sum") == 12
    assert total(metrics, "trimtab_batches_closed_total", reason="window") == 1
    assert total(metrics, "trimtab_batches_closed_total", reason="something new") == 1


def test_every_reason_to_turn_a_request_away_has_a_series_from_the_start() -> None:
    given = (
        outcome.QueueFull(), outcome.QueueFull(klass="batch"), outcome.Infeasible(), outcome.Shed(),
        outcome.DeadlinePassed(), outcome.CallerLimited("requests"),
        outcome.CallerLimited("tokens", 1.0, "rate_limited_tokens"),
        outcome.CallerLimited("at once", 1.0, "too_many_inflight"), outcome.Draining(), outcome.NoUpstream(),
            outcome.OutOfConnections(), outcome.MemoryFull(), outcome.KeeperAway(),
    )  # fmt: skip
    assert {one.reason for one in given} == set(SHED_REASONS)


def test_reconfiguring_keeps_what_was_counted() -> None:
    metrics = make()
    metrics.request_finished(served(), "completions", 200)
    more = Config.model_validate(
        {"pools": [{"name": name, "upstreams": ["http://a:1"]} for name in ("default", "b")]}
    )
    metrics.configure(more.pools)
    metrics.request_finished(served(), "completions", 200)
    metrics.request_finished(served(pool="b"), "completions", 200)
    assert total(metrics, "trimtab_requests_total", pool="default") == 2
    assert total(metrics, "trimtab_requests_total", pool="b") == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_names_pass_promtool() -> None:
    metrics = make(ttft_ms=500)
    metrics.request_finished(served(), "chat.completions", 200)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.render()[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode(), done.stdout.decode()) == (0, "", "")
