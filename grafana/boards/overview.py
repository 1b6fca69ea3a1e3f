"""Is the SLO kept?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as d

from grafana.panels import Q, against_target, base, by_pool, lines, rate, row, seen, stacked, state, value

__all__ = ["build"]

GREEN_TO_RED = ((None, "green"), (1.0, "orange"), (10.0, "red"))
BURN = (
    '(sum by (pool, slo) (rate(trimtab_slo_violations_total{{pool=~"$pool"}}[{window}]))'
    ' / sum by (pool, slo) (rate(trimtab_slo_requests_total{{pool=~"$pool"}}[{window}])))'
    ' / on (pool) group_left () (1 - trimtab_slo_objective_ratio{{pool=~"$pool"}})'
)
MISSED = (
    'sum by (pool) (rate(trimtab_slo_violations_total{pool=~"$pool"}[$__rate_interval]))'
    ' / sum by (pool) (rate(trimtab_slo_requests_total{pool=~"$pool"}[$__rate_interval]))'
)


def build() -> d.Dashboard:
    """Return the dashboard."""
    board = base("Trimtab / Overview", "trimtab-overview", "Is the SLO kept, and if not, where does it break?")
    requests = 'sum(rate(trimtab_requests_total{pool=~"$pool"}[$__rate_interval]))'
    good = 'sum(rate(trimtab_requests_total{pool=~"$pool", outcome="ok"}[$__rate_interval]))'
    shed = 'sum(rate(trimtab_shed_total{pool=~"$pool"}[$__rate_interval]))'
    top = (
        value("Requests", "Requests finished per second.", "reqps", Q(requests, "requests")),
        value(
            "Served",
            "Share of requests that were answered by an upstream.",
            "percentunit",
            Q(f"{good} / {requests}", "served"),
            steps=((None, "red"), (0.9, "orange"), (0.99, "green")),
        ),
        value(
            "Late",
            "Share of measured requests that missed a target, worst pool.",
            "percentunit",
            Q(f"max({MISSED})", "late"),
            steps=((None, "green"), (0.005, "orange"), (0.01, "red")),
        ),
        value(
            "Budget burn, 1 h",
            "How many times faster than allowed the error budget is used, worst target. 1 uses it up exactly.",
            "none",
            Q(f"max({BURN.format(window='1h')})", "burn"),
            steps=GREEN_TO_RED,
            decimals=1,
        ),
        value(
            "Shed",
            "Requests turned away or dropped per second.",
            "reqps",
            Q(shed, "shed"),
            steps=((None, "green"), (0.01, "orange"), (1.0, "red")),
        ),
        value(
            "Healthy upstreams",
            "Upstreams that may be asked, of all.",
            "percentunit",
            Q('avg(trimtab_upstream_healthy{pool=~"$pool"})', "healthy"),
            steps=((None, "red"), (0.5, "orange"), (1.0, "green")),
        ),
    )
    board.with_row(row("Right now"))
    for panel in top:
        board.with_panel(panel)
    board.with_row(row("The SLO"))
    board.with_panel(against_target("ttft", "Time to first token", "Arrival to the first token of a stream."))
    board.with_panel(against_target("e2e", "End to end", "Arrival to the end of the answer."))
    board.with_panel(against_target("tpot", "Time per output token", "Mean per token after the first."))
    board.with_panel(against_target("queue", "Wait in our queue", "Arrival to dispatch: the part that is ours."))
    board.with_panel(
        lines(
            "Error budget burn",
            "Speed at which the error budget is used, per target: 1 uses it up, 14.4 over an hour is a page.",
            "none",
            Q(BURN.format(window="5m"), "{{pool}} {{slo}} 5 min"),
            Q(BURN.format(window="1h"), "{{pool}} {{slo}} 1 h"),
            at_least=2.0,
        )
    )
    board.with_panel(
        lines(
            "Error budget left",
            "Part of the last 24 hours' allowed late requests that is left, by class; below 0 it is overspent.",
            "percentunit",
            Q(by_pool("trimtab_slo_error_budget_remaining_ratio"), "{{pool}} {{class}}"),
            at_least=1.0,
        )
    )
    board.with_panel(
        state(
            "Verdict",
            "What the evidence in the controller's window says: met and missed are claimed only when 95% certain.",
            Q(
                '(trimtab_slo_verdict{pool=~"$pool", verdict="met"} * 2) + on (pool, slo) '
                'trimtab_slo_verdict{pool=~"$pool", verdict="unproven"}',
                "{{pool}} {{slo}}",
            ),
            {"2": ("met", "green"), "1": ("unproven", "blue"), "0": ("missed", "red")},
            width=8,
            height=8,
        )
    )
    board.with_row(row("Traffic"))
    board.with_panel(
        stacked(
            "Requests by outcome",
            "How requests ended, per second.",
            "reqps",
            Q(rate("trimtab_requests_total", "outcome"), "{{outcome}}"),
        )
    )
    board.with_panel(
        stacked(
            "Shed by reason",
            "Why requests were turned away or dropped, per second: the reasons that occurred in the time shown.",
            "reqps",
            Q(seen("trimtab_shed_total", "reason"), "{{reason}}"),
        )
    )
    board.with_panel(
        lines(
            "Tokens",
            "Tokens of requests sent to an upstream, per second.",
            "short",
            Q(rate("trimtab_prompt_tokens_total", "pool"), "{{pool}} prompt"),
            Q(rate("trimtab_output_tokens_total", "pool"), "{{pool}} output"),
        )
    )
    board.with_panel(
        stacked(
            "Status codes",
            "Answers by status, per second; 499 is a client that left.",
            "reqps",
            Q(rate("trimtab_requests_total", "code"), "{{code}}"),
        )
    )
    board.with_panel(
        lines(
            "Requests by route",
            "Operations asked for, per second.",
            "reqps",
            Q(seen("trimtab_requests_total", "route"), "{{route}}"),
        )
    )
    board.with_panel(
        lines(
            "Saturation",
            "Share in use of what the setpoints allow in flight.",
            "percentunit",
            Q(by_pool("trimtab_saturation_ratio"), "{{pool}}"),
            at_least=1.0,
        )
    )
    return board
