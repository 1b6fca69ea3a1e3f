"""Prometheus metrics: vLLM's names where the meaning is the same, `trimtab_worker_*` for our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from backend.engine.histogram import Distribution
from backend.engine.request import Delta, FinishReason, GenerationRequest
from backend.engine.stats import EngineStats
from backend.gpu import Gpu

__all__ = ["CONTENT_TYPE", "Metrics", "RequestProbe"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's boundaries where they resolve; below 300 ms its e2e buckets are one flat step, so ours start at 5 ms.
TTFT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
                       80, 160, 640, 2560)  # fmt: skip
ITL_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5,
                      10, 20, 40, 80)  # fmt: skip
E2E_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50,
                      60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
COUNT_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
N_BUCKETS: Final = (1, 2, 5, 10, 20)

LABELS: Final = ("model_name", "engine")


class EngineCollector(Collector):
    """Exposes the latest engine statistics; the /metrics handler refreshes them before each scrape."""

    def __init__(self, labels: tuple[str, str]) -> None:
        self._labels = labels
        self.numbers: EngineStats | None = None

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: the families depend on whether the engine has reported."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number."""
        numbers = self.numbers
        if numbers is None:
            return
        for name, text, value in (
            ("vllm:num_requests_running", "Sequences in the running batch.", numbers.running),
            ("vllm:num_requests_waiting", "Sequences waiting to be scheduled.", numbers.waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks that sequences own, 0 to 1.", numbers.kv_usage),
            ("trimtab_worker_kv_blocks_total", "KV blocks in the pool.", numbers.total_blocks),
            ("trimtab_worker_kv_blocks_free", "KV blocks holding nothing.", numbers.free_blocks),
            (
                "trimtab_worker_kv_blocks_cached",
                "KV blocks kept for prefix hits, free to evict.",
                numbers.cached_blocks,
            ),
            ("trimtab_worker_kv_blocks_owned", "KV blocks that sequences hold.", numbers.owned_blocks),
            ("trimtab_worker_running_batch_mean", "Sequences per step, mean over all steps.", numbers.mean_running),
        ):
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, value in (
            ("vllm:num_preemptions", "Sequences put back to free their blocks.", numbers.preemptions),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", numbers.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", numbers.prefix_hits),
            ("trimtab_worker_steps", "Engine steps.", numbers.steps),
            (
                "trimtab_worker_step_sequences",
                "Sequences in engine steps; by steps: the mean batch.",
                numbers.running_sum,
            ),
            ("trimtab_worker_step_seconds", "Seconds spent in engine steps.", numbers.step_seconds),
            ("trimtab_worker_stalls", "Times work waited and nothing could run.", numbers.stalls),
        ):
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        for name, text, values in (
            ("vllm:request_queue_time_seconds", "Arrival to the first step, by request.", numbers.queue_s),
            ("vllm:iteration_tokens_total", "Tokens computed, by step.", numbers.iteration_tokens),
        ):
            histogram = HistogramMetricFamily(name, text, labels=LABELS)
            histogram.add_metric(self._labels, list(_cumulative(values)), values.total)
            yield histogram


class GpuCollector(Collector):
    """Exposes what the driver says about the engine's GPU, asked at each scrape."""

    def __init__(self, labels: tuple[str, str], gpu: Gpu) -> None:
        self._labels = labels
        self._gpu = gpu

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: not every GPU tells everything."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number that is known."""
        found = self._gpu.read()
        for name, text, value in (
            ("utilization_ratio", "Share of time in which a kernel ran, 0 to 1.", found.utilization),
            ("memory_used_bytes", "Memory in use on the GPU, by everybody.", found.memory_used_bytes),
            ("memory_total_bytes", "Memory of the GPU.", found.memory_total_bytes),
            ("power_watts", "Power that the GPU draws.", found.power_watts),
            ("temperature_celsius", "Temperature of the GPU.", found.temperature_celsius),
        ):
            if value is not None:
                gauge = GaugeMetricFamily(f"trimtab_worker_gpu_{name}", text, labels=LABELS)
                gauge.add_metric(self._labels, value)
                yield gauge


def _cumulative(values: Distribution) -> Iterator[tuple[str, float]]:
    """Yield each boundary, as Prometheus writes it, with the number of values up to it."""
    counts = values.counts or (0,) * (len(values.bounds) + 1)
    for bound, count in zip((*values.bounds, float("inf")), accumulate(counts), strict=True):
        yield "+Inf" if bound == float("inf") else str(bound), count


class Metrics:
    """The worker's registry. Label children are made here, so that every series exists at 0 from the start."""

    def __init__(self, model_name: str, *, block_size: int, num_blocks: int, gpu: Gpu | None = None) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        cache = Gauge(
            "vllm:cache_config_info",
            "The KV cache's make; always 1.",
            (*LABELS, "block_size", "num_gpu_blocks"),
            registry=self.registry,
        )
        cache.labels(*self._labels, str(block_size), str(num_blocks)).set(1)
        self._engine = EngineCollector(self._labels)
        self.registry.register(self._engine)
        if gpu is not None:
            self.registry.register(GpuCollector(self._labels, gpu))
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that got a first token.")
        self.prompt_tokens_cached = self._counter("vllm:prompt_tokens_cached", "Prompt tokens taken from the cache.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.disconnects = self._counter("trimtab_worker_client_disconnects", "Requests whose client went away.")
        success = Counter(
            "vllm:request_success", "Choices ended, by reason.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self.success = {reason: success.labels(*self._labels, reason.value) for reason in FinishReason}
        self.ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self.itl = self._histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", ITL_BUCKETS)
        self.tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, by choice.",
            ITL_BUCKETS,
        )
        self.e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to the last token.", E2E_BUCKETS)
        self.decode = self._histogram(
            "vllm:request_decode_time_seconds", "First to last token, by choice.", E2E_BUCKETS
        )
        self.request_prompt = self._histogram("vllm:request_prompt_tokens", "Prompt length.", COUNT_BUCKETS)
        self.request_generation = self._histogram("vllm:request_generation_tokens", "Output length.", COUNT_BUCKETS)
        self.request_n = self._histogram("vllm:request_params_n", "Choices asked for.", N_BUCKETS)
        self.request_max_tokens = self._histogram("vllm:request_params_max_tokens", "Output bound.", COUNT_BUCKETS)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, LABELS, buckets=buckets, registry=self.registry).labels(*self._labels)

    def render(self, numbers: EngineStats | None) -> bytes:
        """Return the exposition text, with the engine's part from `numbers` (None: the engine did not answer)."""
        self._engine.numbers = numbers
        return generate_latest(self.registry)

    def probe(self, request: GenerationRequest, now: float) -> RequestProbe:
        """Start watching one request that arrived at `now`."""
        return RequestProbe(self, request, now)


class RequestProbe:
    """Watches one request from arrival to end. Times are seconds of one monotonic clock."""

    def __init__(self, metrics: Metrics, request: GenerationRequest, arrival: float) -> None:
        self._metrics = metrics
        self._request = request
        self._arrival = arrival
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        self._open = set(range(request.n))
        metrics.request_n.observe(request.n)
        metrics.request_max_tokens.observe(request.params.max_tokens)
        metrics.request_prompt.observe(len(request.prompt_token_ids))

    def delta(self, delta: Delta, now: float) -> None:
        """Take note of a step's output."""
        metrics, index = self._metrics, delta.index
        if delta.token_ids:
            if not self._first:
                metrics.ttft.observe(now - self._arrival)
                metrics.prompt_tokens.inc(len(self._request.prompt_token_ids))
            count = len(delta.token_ids)
            if index in self._last:
                metrics.itl.observe((now - self._last[index]) / count)
            self._first.setdefault(index, now)
            self._last[index] = now
            self._tokens[index] = self._tokens.get(index, 0) + count
            metrics.generation_tokens.inc(count)
        if delta.usage is not None:
            metrics.prompt_tokens_cached.inc(delta.usage.cached_tokens)
        if delta.finish_reason is not None and index in self._open:
            self._end(index, delta.finish_reason)

    def _end(self, index: int, reason: FinishReason) -> None:
        metrics = self._metrics
        self._open.discard(index)
        metrics.success[reason].inc()
        tokens = self._tokens.get(index, 0)
        metrics.request_generation.observe(tokens)
        if tokens:
            metrics.decode.observe(self._last[index] - self._first[index])
        if tokens > 1:
            metrics.tpot.observe((self._last[index] - self._first[index]) / (tokens - 1))

    def close(self, now: float, unfinished: FinishReason) -> None:
        """End the watch; choices still open count as `unfinished`. Idempotent."""
        if not self._open and self._first:
            self._metrics.e2e.observe(now - self._arrival)
            self._first = {}
        for index in sorted(self._open):
            self._end(index, unfinished)
