"""Every counter and histogram there is, by name, with its labels and its buckets."""

from __future__ import annotations

from collections.abc import Sequence

from controller.slo import LATENCIES, SLO
from proxy.observe.instruments import CounterFamily, HistogramFamily

__all__ = ["Families", "Family"]

TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0,
)  # fmt: skip
TPOT_BOUNDS = (
    0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
DURATION_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
QUEUE_BOUNDS = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
TICK_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
WINDOW_BOUNDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    1.0, 5.0, 60.0,
)  # fmt: skip
BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

Family = CounterFamily | HistogramFamily


class Families:
    """The families of one proxy, with bucket boundaries exactly at the targets of its SLOs."""

    def __init__(self, slos: Sequence[SLO]) -> None:
        targets: dict[str, list[float]] = {latency: [] for latency in LATENCIES}
        for slo in slos:
            for latency, target in slo.targets():
                targets[latency].append(target)
        count, hist = CounterFamily, HistogramFamily
        by_class = ("pool", "class")
        self.requests = count(
            "trimtab_requests", "Requests finished, by how they ended and the status sent.",
            ("pool", "route", "class", "outcome", "code"),
        )  # fmt: skip
        self.duration = hist(
            "trimtab_request_duration_seconds", "Arrival to the end of the answer, of requests sent to an upstream.",
            by_class, (*DURATION_BOUNDS, *targets["e2e"]),
        )  # fmt: skip
        self.ttft = hist(
            "trimtab_time_to_first_token_seconds", "Arrival to the first token, of streams.",
            by_class, (*TTFT_BOUNDS, *targets["ttft"]),
        )  # fmt: skip
        self.tpot = hist(
            "trimtab_inter_token_latency_seconds", "Mean time per output token after the first, one value a stream.",
            by_class, (*TPOT_BOUNDS, *targets["tpot"]),
        )  # fmt: skip
        self.queue = hist(
            "trimtab_queue_duration_seconds", "Time waited in the proxy's queue, of requests that were let in.",
            by_class, (*QUEUE_BOUNDS, *targets["queue"]),
        )  # fmt: skip
        self.batch_size = hist(
            "trimtab_batch_size", "Items sent upstream together.", ("pool",), BATCH_BOUNDS
        )  # fmt: skip
        self.window = hist(
            "trimtab_window_wait_seconds",
            "For how long the batching window alone held an upstream call back, of calls that it held.",
            ("pool",), WINDOW_BOUNDS,
        )  # fmt: skip
        self.closed = count("trimtab_batches_closed", "Batches sent, by what ended the wait.", ("pool", "reason"))
        self.shed_total = count("trimtab_shed", "Requests turned away or dropped, by reason.", ("pool", "reason"))
        self.judged = count("trimtab_slo_requests", "Requests measured against a target.", ("pool", "slo"))
        self.missed = count("trimtab_slo_violations", "Requests that missed a target.", ("pool", "slo"))
        self.prompt_tokens = count("trimtab_prompt_tokens", "Prompt tokens sent to upstreams.", ("pool",))
        self.output_tokens = count("trimtab_output_tokens", "Output tokens of finished requests.", ("pool",))
        self.upstream_requests = count(
            "trimtab_upstream_requests",
            "Calls that an upstream was asked, by how they ended; those that went on elsewhere included.",
            ("pool", "upstream", "outcome"),
        )
        self.retries = count("trimtab_retries", "Upstream calls repeated.", ("pool",))
        self.fallbacks = count(
            "trimtab_fallbacks", "Requests that went on to another pool, by why.", ("pool", "to", "cause")
        )
        self.follow_ups = count(
            "trimtab_follow_ups",
            "Requests that named something which an upstream keeps: its keeper is known, away, or nobody knows it.",
            ("pool", "result"),
        )
        self.decisions = count("trimtab_decisions", "Decisions of the controller and operators.", ("pool", "rule"))
        self.reloads = count("trimtab_config_reloads", "Configuration reloads.", ("result",))
        self.loop_delay = hist(
            "trimtab_event_loop_delay_seconds", "How late the event loop woke up for a timer.", (),
            (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )  # fmt: skip
        self.tick = hist(
            "trimtab_controller_tick_seconds", "What a look of the controller at its pool took, once a second.",
            ("pool",), TICK_BOUNDS,
        )  # fmt: skip
        self.by_latency = {"e2e": self.duration, "ttft": self.ttft, "tpot": self.tpot, "queue": self.queue}
        self.all: list[Family] = [
            self.requests, self.duration, self.ttft, self.tpot, self.queue, self.batch_size,
            self.window, self.closed, self.shed_total, self.judged, self.missed, self.prompt_tokens,
            self.output_tokens, self.upstream_requests, self.retries, self.fallbacks, self.follow_ups, self.decisions,
            self.reloads, self.loop_delay, self.tick,
        ]  # fmt: skip
