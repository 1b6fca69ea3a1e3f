"""The metrics that operators of vLLM know, and ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend.engine.histogram import QUEUE_BOUNDS, Histogram
from backend.engine.stats import EngineStats
from tests.backend.api.conftest import Worker


async def scrape(worker: Worker) -> dict[str, Any]:
    """Return sample name (plus the finished_reason, where there is one) -> value."""
    async with worker.client.get("/metrics") as response:
        assert response.status == 200
        text = await response.text()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "fake"
            assert sample.labels["engine"] == "0"
            if "le" not in sample.labels:
                samples[sample.name + sample.labels.get("finished_reason", "")] = sample.value
    return samples


async def test_every_series_exists_before_the_first_request(worker: Worker) -> None:
    samples = await scrape(worker)
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:request_queue_time_seconds_count",
        "vllm:iteration_tokens_total_count",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_totalstop",
        "vllm:request_success_totallength",
        "vllm:request_success_totalabort",
        "vllm:request_success_totalerror",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:cache_config_info",
        "vllm:request_decode_time_seconds_count",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count",
        "trimtab_worker_kv_blocks_free",
        "trimtab_worker_kv_blocks_cached",
        "trimtab_worker_kv_blocks_owned",
        "trimtab_worker_kv_blocks_total",
        "trimtab_worker_running_batch_mean",
        "trimtab_worker_step_seconds_total",
    ):
        assert name in samples


async def test_engine_numbers_are_those_of_the_engine(worker: Worker) -> None:
    samples = await scrape(worker)
    assert samples["vllm:num_requests_running"] == 1
    assert samples["vllm:num_requests_waiting"] == 2
    assert samples["vllm:kv_cache_usage_perc"] == 0.2
    assert samples["trimtab_worker_running_batch_mean"] == 1.5


async def test_the_engines_histograms_are_cumulative(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Histogram(QUEUE_BOUNDS)
    for seconds in (0.001, 0.04, 1e5):
        queue.observe(seconds)
    numbers = replace(await worker.engine.stats(), queue_s=queue.distribution())

    async def stats() -> EngineStats:
        return numbers

    monkeypatch.setattr(worker.engine, "stats", stats)
    samples = await scrape(worker)
    assert samples["vllm:request_queue_time_seconds_count"] == 3
    assert samples["vllm:request_queue_time_seconds_sum"] == pytest.approx(1e5 + 0.041)
    async with worker.client.get("/metrics") as response:
        text = await response.text()
    counts = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "queue_time_seconds_bucket" in line]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2], counts[-1]) == (1, 2, 3)


async def test_tokens_latencies_and_reasons_are_counted(worker: Worker) -> None:
    await worker.post("/v1/completions", prompt=["abc", "d"], n=2, max_tokens=5)
    await worker.post("/v1/completions", prompt="abc", max_tokens=20)
    samples = await scrape(worker)
    assert samples["vllm:prompt_tokens_total"] == 3 + 1 + 3
    assert samples["vllm:generation_tokens_total"] == 4 * 5 + 13
    assert samples["vllm:request_success_totallength"] == 4
    assert samples["vllm:request_success_totalstop"] == 1
    assert samples["vllm:time_to_first_token_seconds_count"] == 3
    assert samples["vllm:e2e_request_latency_seconds_count"] == 3
    assert samples["vllm:inter_token_latency_seconds_count"] == 4 * 4 + 12
    assert samples["vllm:request_generation_tokens_sum"] == 33


async def test_refused_requests_count_as_nothing(worker: Worker) -> None:
    await worker.post("/v1/completions", prompt="abc", temperature=-1)
    samples = await scrape(worker)
    assert samples["vllm:request_params_n_count"] == 0
    assert samples["vllm:request_success_totalabort"] == 0


async def test_engine_errors_count_as_errors(worker: Worker) -> None:
    worker.engine.fail_at = 2
    await worker.post("/v1/completions", prompt="abc")
    samples = await scrape(worker)
    assert samples["vllm:request_success_totalerror"] == 1
    assert samples["vllm:request_success_totalabort"] == 0
