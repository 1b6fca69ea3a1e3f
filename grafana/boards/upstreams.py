"""Which upstream is unwell, and what does the proxy itself cost?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as d

from grafana.panels import Q, base, by_pool, lines, quantile, rate, row, stacked, state

__all__ = ["build"]

STATES = {"draining": 5, "drained": 4, "up": 3, "overloaded": 2, "ejected": 1}
"""What an upstream can be in, as a number on the board; 0 is down."""


def build() -> d.Dashboard:
    """Return the dashboard."""
    board = base("Trimtab / Upstreams", "trimtab-upstreams", "Which upstream is unwell, and what the proxy costs.")
    up = "pool, upstream"
    board.with_row(row("Upstreams"))
    board.with_panel(
        state(
            "State",
            "Whether each upstream may be asked.",
            Q(
                " + on (pool, upstream) ".join(
                    f'(trimtab_upstream_state{{pool=~"$pool", state="{name}"}} * {value})'
                    for name, value in STATES.items()
                ),
                "{{pool}} {{upstream}}",
            ),
            {
                "5": ("draining", "blue"),
                "4": ("drained", "purple"),
                "3": ("up", "green"),
                "2": ("overloaded", "yellow"),
                "1": ("ejected", "orange"),
                "0": ("down", "red"),
            },
            height=8,
        )
    )
    board.with_panel(
        lines(
            "In flight",
            "Calls under way at each upstream.",
            "none",
            Q(by_pool("trimtab_upstream_inflight"), "{{upstream}}"),
            width=12,
        )
    )
    board.with_panel(
        stacked(
            "Requests",
            "Requests finished at each upstream, per second.",
            "reqps",
            Q(rate("trimtab_upstream_requests_total", up), "{{upstream}}"),
        )
    )
    board.with_panel(
        lines(
            "Failures",
            "Requests that failed or timed out there, per second.",
            "reqps",
            Q(rate("trimtab_upstream_requests_total", up, 'pool=~"$pool", outcome!~"ok|rejected"'), "{{upstream}}"),
            at_least=1.0,
        )
    )
    board.with_panel(
        lines(
            "Failure share",
            "Moving share of failures and overloads, as routing sees it.",
            "percentunit",
            Q(by_pool("trimtab_upstream_failure_ratio"), "{{upstream}}"),
            at_least=0.1,
        )
    )
    board.with_panel(
        lines(
            "Connections",
            "Connections kept to each upstream.",
            "none",
            Q(by_pool("trimtab_upstream_connections"), "{{upstream}} {{state}}"),
            width=12,
        )
    )
    board.with_panel(
        lines(
            "Retries",
            "Upstream calls repeated, per second.",
            "ops",
            Q(rate("trimtab_retries_total", "pool"), "{{pool}}"),
            at_least=1.0,
            width=12,
        )
    )
    board.with_row(row("What they say of themselves"))
    board.with_panel(
        lines(
            "Their own load",
            "Sequences running and requests waiting inside each upstream, by its own metrics or headers.",
            "none",
            Q(by_pool("trimtab_upstream_reported_running"), "{{upstream}} running"),
            Q(by_pool("trimtab_upstream_reported_waiting"), "{{upstream}} waiting"),
        )
    )
    board.with_panel(
        lines(
            "Their KV cache",
            "Share of its KV cache that each upstream says is in use.",
            "percentunit",
            Q(by_pool("trimtab_upstream_reported_kv_usage_ratio"), "{{upstream}}"),
            at_least=0.1,
        )
    )
    board.with_panel(
        lines(
            "Age of what they say",
            "How old the last report is; what is too old is not used.",
            "s",
            Q(by_pool("trimtab_upstream_reported_age_seconds"), "{{upstream}}"),
        )
    )
    board.with_row(row("The proxy itself"))
    slow = "rate(trimtab_event_loop_delay_seconds_bucket[$__rate_interval])"
    delay = f"histogram_quantile(%s, sum by (instance, le) ({slow}))"
    board.with_panel(
        lines(
            "Event loop delay",
            "How late timers run: above a few milliseconds the CPU is short.",
            "s",
            Q(delay % "0.5", "{{instance}} p50"),
            Q(delay % "0.99", "{{instance}} p99"),
        )
    )
    board.with_panel(
        lines(
            "CPU",
            "Cores used by the proxy.",
            "none",
            Q('rate(process_cpu_seconds_total{job="trimtab"}[$__rate_interval])', "{{instance}}"),
        )
    )
    board.with_panel(
        lines(
            "Memory",
            "Resident memory of the proxy.",
            "bytes",
            Q('process_resident_memory_bytes{job="trimtab"}', "{{instance}}"),
        )
    )
    board.with_panel(
        lines(
            "Open files",
            "File descriptors, against the limit.",
            "none",
            Q('process_open_fds{job="trimtab"}', "{{instance}} open"),
            Q('process_max_fds{job="trimtab"}', "{{instance}} limit"),
            dashed="limit$",
            log=10,
        )
    )
    board.with_panel(
        lines(
            "Controller's look",
            "What a look of the controller at its pool takes, once a second; the event loop waits for it.",
            "s",
            Q(quantile(0.5, "trimtab_controller_tick_seconds", "pool"), "{{pool}} p50"),
            Q(quantile(0.99, "trimtab_controller_tick_seconds", "pool"), "{{pool}} p99"),
        )
    )
    board.with_panel(
        lines(
            "Configuration reloads",
            "Reloads since start, by result.",
            "none",
            Q("sum by (result) (trimtab_config_reloads_total)", "{{result}}"),
        )
    )
    board.with_row(row("Processes, with several workers"))
    board.with_panel(
        lines(
            "Requests by worker",
            "Requests under way in each process of the proxy.",
            "none",
            Q("trimtab_proxy_worker_requests", "{{instance}} worker {{worker}}"),
        )
    )
    board.with_panel(
        lines(
            "CPU by worker",
            "Cores used by each process of the proxy.",
            "none",
            Q("rate(trimtab_proxy_worker_cpu_seconds_total[$__rate_interval])", "{{instance}} worker {{worker}}"),
            at_least=0.1,
        )
    )
    board.with_panel(
        lines(
            "Memory by worker",
            "Resident memory of each process of the proxy.",
            "bytes",
            Q("trimtab_proxy_worker_resident_memory_bytes", "{{instance}} worker {{worker}}"),
        )
    )
    return board
