"""Who waits, for how long, and how do batches leave?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as d

from grafana.panels import HISTOGRAMS, Q, base, by_pool, heat, lines, quantile, row, seen, stacked

__all__ = ["build"]


def build() -> d.Dashboard:
    """Return the dashboard."""
    board = base("Trimtab / Queue and batching", "trimtab-queue", "Who waits, for how long, and how batches leave.")
    board.with_row(row("Queue"))
    board.with_panel(
        stacked(
            "Waiting by class",
            "Requests in the queue.",
            "none",
            Q('sum by (class) (trimtab_queue_size{pool=~"$pool"})', "{{class}}"),
        )
    )
    board.with_panel(
        lines(
            "Oldest",
            "How long the oldest waiting request of each class has waited.",
            "s",
            Q('max by (class) (trimtab_queue_oldest_seconds{pool=~"$pool"})', "{{class}}"),
        )
    )
    board.with_panel(
        lines(
            "Waiting work", "Predicted tokens in the queue.", "none", Q(by_pool("trimtab_queue_tokens"), "{{pool}}")
        )
    )
    board.with_panel(
        lines(
            "Wait by class",
            "P95 of the time in the queue, by class.",
            "s",
            Q(quantile(0.95, HISTOGRAMS["queue"], "class"), "{{class}} p95"),
        )
    )
    board.with_panel(heat("Wait", "How long requests wait.", "s", HISTOGRAMS["queue"], width=8))
    board.with_panel(
        lines(
            "Express share",
            "Most that express classes get while others wait; moved by evidence.",
            "percentunit",
            Q(by_pool("trimtab_express_share_ratio"), "{{pool}}"),
            top=1.0,
        )
    )
    board.with_row(row("Batches"))
    size = (
        'sum by (pool) (rate(trimtab_batch_size_sum{pool=~"$pool"}[$__rate_interval]))'
        ' / sum by (pool) (rate(trimtab_batch_size_count{pool=~"$pool"}[$__rate_interval]))'
    )
    board.with_panel(
        lines(
            "Mean batch",
            "Items per upstream call, against the most allowed.",
            "none",
            Q(size, "{{pool}} mean"),
            Q(by_pool("trimtab_setpoint_max_batch_size"), "{{pool}} limit"),
            dashed="limit$",
        )
    )
    board.with_panel(heat("Batch sizes", "Distribution of batch sizes.", "none", "trimtab_batch_size", width=8))
    board.with_panel(
        stacked(
            "Why batches left",
            "What ended the wait for company, per second.",
            "ops",
            Q(seen("trimtab_batches_closed_total", "reason"), "{{reason}}"),
        )
    )
    board.with_panel(
        lines(
            "In flight",
            "Items or sequences at the upstreams, and calls.",
            "none",
            Q(by_pool("trimtab_inflight"), "{{pool}} items"),
            Q(by_pool("trimtab_inflight_calls"), "{{pool}} calls"),
        )
    )
    board.with_panel(
        lines(
            "Held by the window",
            "How long the batching window alone held calls back, of those that it held, against the setpoint.",
            "s",
            Q(quantile(0.5, "trimtab_window_wait_seconds", "pool"), "{{pool}} p50"),
            Q(quantile(0.95, "trimtab_window_wait_seconds", "pool"), "{{pool}} p95"),
            Q(by_pool("trimtab_setpoint_window_seconds"), "{{pool}} setpoint"),
            dashed="setpoint$",
        )
    )
    board.with_panel(
        lines(
            "Shed",
            "Share of requests turned away or dropped.",
            "percentunit",
            Q(
                'sum by (pool) (rate(trimtab_shed_total{pool=~"$pool"}[$__rate_interval]))'
                ' / sum by (pool) (rate(trimtab_requests_total{pool=~"$pool"}[$__rate_interval]))',
                "{{pool}}",
            ),
            at_least=0.1,
        )
    )
    return board
