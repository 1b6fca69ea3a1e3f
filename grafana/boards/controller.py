"""What is the controller doing, and why?"""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders import statetimeline, timeseries

from grafana.panels import Q, against_target, base, by_pool, lines, rate, row, seen, stacked, state

__all__ = ["build"]


def build() -> d.Dashboard:
    """Return the dashboard."""
    board = base("Trimtab / Controller", "trimtab-controller", "What the controller sees, what it turns, and why.")
    service = 'trimtab_latency_quantile_seconds{pool=~"$pool", latency="service", q="%s"}'
    board.with_row(row("Setpoints over latency"))
    board.with_panel(against_target("e2e", "End to end against the target", "Arrival to the end.", width=24))
    board.with_panel(
        lines(
            "Batch size",
            "The batch size setpoint over what is in flight; dashed, how far it may go. Logarithmic.",
            "none",
            Q(by_pool("trimtab_setpoint_max_batch_size"), "{{pool}}"),
            Q(by_pool("trimtab_setpoint_max_batch_size_bound"), "{{pool}} {{bound}} bound"),
            Q(by_pool("trimtab_inflight"), "{{pool}} in flight"),
            width=12,
            dashed="bound$",
            thin="in flight$",
            log=2,
        )
    )
    board.with_panel(
        lines(
            "Window",
            "For how long the first waiting item may be held for company.",
            "s",
            Q(by_pool("trimtab_setpoint_window_seconds"), "{{pool}}"),
            width=12,
            at_least=0.01,
        )
    )
    board.with_row(row("Two signals, kept apart"))
    board.with_panel(
        lines(
            "Service time",
            "Dispatch to the end of the answer: what the batch size answers to.",
            "s",
            Q(service % "0.5", "{{pool}} p50"),
            Q(service % "0.99", "{{pool}} p99"),
            width=12,
        )
    )
    board.with_panel(against_target("queue", "Queue time", "Arrival to dispatch: what admission answers to."))
    board.with_row(row("Decisions"))
    board.with_panel(
        stacked(
            "Decisions by rule",
            "Decisions a minute, by the rule that fired; the admin API says what each one saw.",
            "none",
            Q('sum by (rule) (increase(trimtab_decisions_total{pool=~"$pool"}[1m]))', "{{rule}}"),
            width=12,
        )
    )
    board.with_panel(
        state(
            "Pins",
            "Setpoints held by an operator: the law cannot move them.",
            Q(by_pool("trimtab_setpoint_pinned"), "{{pool}} {{setpoint}}"),
            {"0": ("law", "green"), "1": ("pinned", "orange")},
            width=6,
            height=8,
        )
    )
    board.with_panel(
        state(
            "Law",
            "The law in force, by pool.",
            Q(by_pool("trimtab_law_info"), "{{pool}}: {{law}}"),
            {"1": ("in force", "blue")},
            width=6,
            height=8,
        )
    )
    board.with_row(row("Evidence"))
    board.with_panel(
        lines(
            "Samples",
            "Requests behind the live quantiles: 299 without one late prove a P99 target.",
            "none",
            Q(by_pool("trimtab_latency_samples"), "{{pool}} {{latency}}"),
        )
    )
    board.with_panel(
        lines(
            "Late",
            "Share of measured requests that missed each target.",
            "percentunit",
            Q(
                f"{rate('trimtab_slo_violations_total', 'pool, slo')} / "
                f"{rate('trimtab_slo_requests_total', 'pool, slo')}",
                "{{pool}} {{slo}}",
            ),
            at_least=0.05,
        )
    )
    board.with_panel(
        lines(
            "Generation",
            "Counts changes of the setpoints: a flat line is a settled controller.",
            "none",
            Q(by_pool("trimtab_setpoint_generation"), "{{pool}}"),
        )
    )
    board.with_row(row("Predicted lengths"))
    for panel in _predictor():
        board.with_panel(panel)
    return board


def _predictor() -> Iterator[timeseries.Panel | statetimeline.Panel]:
    yield lines(
        "Coverage of predictions",
        "Share of the newest answers no longer than their predicted ninth decile; dashed, where it belongs.",
        "percentunit",
        Q(by_pool("trimtab_predictor_coverage"), "{{pool}}"),
        Q(f"max({by_pool('trimtab_predictor_coverage')}) * 0 + 0.9", "right"),
        dashed="right$",
        top=1.0,
    )
    yield lines(
        "Loss of predictions",
        "Quantile loss over that of always saying the usual length: 0.8 is a fifth better, 1 might as well be off.",
        "none",
        Q(by_pool("trimtab_predictor_pinball_ratio"), "{{pool}} {{q}}"),
        Q(f"max({by_pool('trimtab_predictor_pinball_ratio')}) * 0 + 1", "usual length"),
        dashed="usual length$",
    )
    yield lines(
        "Order of predictions",
        "Rank correlation of predicted and real lengths: 1 is the true order, near 0 ordering gains nothing from it.",
        "none",
        Q(by_pool("trimtab_predictor_tau"), "{{pool}}"),
        top=1.0,
    )
    yield stacked(
        "What predictions come from",
        "Predictions per second, by what carried them: learned model, prompt, template or usual length.",
        "reqps",
        Q(seen("trimtab_predictor_source_total", "source"), "{{source}}"),
        width=12,
    )
    yield state(
        "What is decided by",
        "The step whose live record is good enough to order by, and to admit by; none: nothing has proven itself.",
        Q(f"{by_pool('trimtab_predictor_in_use')} == 1", "{{pool}} {{use}}: {{step}}"),
        {"1": ("in use", "blue")},
        width=12,
        height=8,
    )
