"""The admin API's answers as text for a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

__all__ = [
    "decision_line",
    "laws_text",
    "plans_table",
    "pool_text",
    "pools_table",
    "table",
    "upstreams_table",
    "what_if_text",
]

_TARGETS = ("ttft", "tpot", "e2e", "queue")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(head[i]), *(len(row[i]) for row in cells)) if cells else len(head[i]) for i in range(len(head))]
    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(head)), *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def pools_table(pools: Sequence[dict[str, Any]]) -> str:
    """Return every pool on a line: the SLO, the setpoints, what is going on."""
    rows = []
    for pool in pools:
        pinned = dict.fromkeys(pool["pins"], "*")
        setpoints = pool["setpoints"]
        rows.append(
            (
                pool["name"],
                targets(pool["slo"]),
                pool["law"],
                f"{setpoints['max_batch_size']}{pinned.get('max_batch_size', '')}",
                f"{setpoints['window_ms']:g} ms{pinned.get('window_ms', '')}",
                pool["queued"],
                pool["inflight"],
            )
        )
    text = table(("POOL", "SLO", "LAW", "BATCH", "WINDOW", "QUEUED", "INFLIGHT"), rows)
    return text + ("\n* pinned" if any(pool["pins"] for pool in pools) else "")


def plans_table(plans: Sequence[dict[str, Any]]) -> str:
    """Return every change to come on a line."""
    rows = [
        (
            plan["id"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(plan["at"])),
            "for good" if plan["for_s"] is None else f"{plan['for_s']:.0f} s",
            plan["pool"],
            plan["kind"],
            ", ".join(f"{key}={value}" for key, value in plan["body"].items()),
            plan["actor"],
        )
        for plan in plans
    ]
    return table(("PLAN", "AT", "FOR", "POOL", "WHAT", "CHANGE", "BY"), rows) if rows else "nothing is planned"


def targets(slo: dict[str, Any]) -> str:
    """Return targets as `ttft 500 ms, e2e 10000 ms at p99`."""
    targets = [f"{name} {slo[f'{name}_ms']:g} ms" for name in _TARGETS if slo.get(f"{name}_ms") is not None]
    return f"{', '.join(targets)} at p{100 * slo['quantile']:g}" if targets else "none"


def pool_text(pool: dict[str, Any]) -> str:
    """Return one pool in full."""
    parts = [pools_table([pool])]
    live = pool["live"]
    rows = []
    for name, found in live.get("quantiles", {}).items():
        values = [found.get(quantile, {}).get("value_ms") for quantile in ("p50", "p95", "p99")]
        judged = live.get("attainment", {}).get(name, {})
        target = judged.get("target_ms")
        rows.append((name, found.get("n", 0), *values, target, judged.get("late"), judged.get("verdict")))
    parts.append(table(("LATENCY", "N", "P50 ms", "P95 ms", "P99 ms", "TARGET ms", "LATE", "VERDICT"), rows))
    parts.append(upstreams_table(pool))
    notes = ["the law is frozen"] if pool.get("frozen") else []
    notes += [f"{one['kind']} goes back in {one['in_s']:g} s" for one in pool.get("expiring", ())]
    return "\n\n".join(parts) + ("\n\n" + "\n".join(notes) if notes else "")


def upstreams_table(pool: dict[str, Any]) -> str:
    """Return a pool's upstreams: what they do for us, and what they say about themselves where they do."""
    upstreams = pool["stats"].get("upstreams", ())
    head = ["UPSTREAM", "STATE", "INFLIGHT", "SERVED", "FAILURES"]
    rows: list[list[object]] = [
        [up["url"], up.get("state"), up.get("inflight"), up.get("served"), up.get("failure_rate")] for up in upstreams
    ]
    if any(up.get("reported") for up in upstreams):
        head += ["SAYS RUNNING", "WAITING", "KV %", "AGE s"]
        for row, up in zip(rows, upstreams, strict=True):
            said = up.get("reported") or {}
            age = said.get("age_s")
            shown = f"{age:.1f}{' (stale)' if said.get('stale') else ''}" if age is not None else said.get("error")
            row += [said.get("running"), said.get("waiting"), _scaled(said.get("kv_usage"), 100.0), shown]
    return table(head, rows)


def laws_text(laws: Sequence[dict[str, Any]]) -> str:
    """Return every law with what it does and what it can be told, defaults first."""
    parts = []
    for law in laws:
        rows = [
            (f"  {option['name']}={json.dumps(option['default']).strip(chr(34))}", option["accepted"], option["text"])
            for option in law["options"]
        ]
        options = table(("  OPTION", "ACCEPTED", "WHAT IT DOES"), rows)
        parts.append(f"{law['name']}: {law['text']}\n{options}")
    return "\n\n".join(parts)


def what_if_text(found: dict[str, Any]) -> str:
    """Return the figures of a simulation side by side."""
    rows = [
        (title, _scaled(found["now"][key], scale), _scaled(found["then"][key], scale))
        for title, key, scale in (
            ("on time, per second", "goodput", 1.0),
            ("late, % of served", "late_share", 100.0),
            ("refused, %", "refused_share", 100.0),
            ("shed, %", "shed_share", 100.0),
            ("P50, ms", "p50_s", 1000.0),
            ("P99, ms", "p99_s", 1000.0),
            ("batch limit, mean", "mean_batch_limit", 1.0),
        )
    ]
    head = f"{found['requests']} requests of {found['span_s']:.0f} s, simulated"
    return f"{head}\n{table(('', 'NOW', 'THEN'), rows)}"


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def decision_line(decision: dict[str, Any]) -> str:
    """Return one decision as a line."""
    clock = time.strftime("%H:%M:%S", time.localtime(decision["wall"]))
    outcome = f" -> {decision['outcome']}" if decision.get("outcome") else ""
    return f"{clock}  {decision['pool']}#{decision['id']}  {decision['rule']}: {decision['text']}{outcome}"
