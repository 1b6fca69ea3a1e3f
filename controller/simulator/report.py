"""Tables, JSON and pictures of simulated days."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.simulator.record import Record

__all__ = ["as_json", "plot", "table"]

_COLUMNS = ("law", "goodput/s", "on time", "late", "refused", "shed", "failed", "P50", "P99", "size", "busy")


def summary(record: Record) -> dict[str, Any]:
    """Return a run's figures, JSON-ready; a quantile of nothing is None."""
    figures = record.figures()
    sizes = [size for _, size, _ in record.setpoints]
    return {
        "offered": figures.offered,
        "goodput_per_s": figures.goodput,
        "on_time_share": figures.goodput * record.horizon_s / max(1, figures.offered),
        "late_share": figures.late_share,
        "refused_share": figures.refused_share,
        "shed_share": figures.shed_share,
        "failed_share": figures.failed_share,
        "p50_s": None if math.isnan(figures.p50_s) else figures.p50_s,
        "p99_s": None if math.isnan(figures.p99_s) else figures.p99_s,
        "mean_max_batch_size": sum(sizes) / len(sizes) if sizes else None,
        "upstream_busy_share": record.upstream_busy_s / record.horizon_s,
        "upstream_calls": record.calls,
        "preemptions": record.preemptions,
    }


def table(runs: Mapping[str, Record]) -> str:
    """Return the runs side by side as text."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for name, record in runs.items():
        s = summary(record)
        rows.append(
            (
                name,
                f"{s['goodput_per_s']:.3f}",
                *(f"{100 * s[key]:.1f}%" for key in ("on_time_share", "late_share", "refused_share", "shed_share")),
                f"{100 * s['failed_share']:.1f}%",
                *("-" if s[key] is None else f"{s[key]:.2f} s" for key in ("p50_s", "p99_s")),
                "-" if s["mean_max_batch_size"] is None else f"{s['mean_max_batch_size']:.1f}",
                f"{100 * s['upstream_busy_share']:.0f}%",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_json(runs: Mapping[str, Record], decisions: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return figures, goodput over time, setpoints and decisions of every run."""
    step = 10.0
    return json.dumps(
        {
            name: summary(record)
            | {
                "goodput_step_s": step,
                "goodput_series": record.goodput_series(step),
                "setpoints": record.setpoints,
                "decisions": list(decisions.get(name, ())),
            }
            for name, record in runs.items()
        },
        indent=1,
    )


def plot(runs: Mapping[str, Record], path: Path) -> None:
    """Draw goodput and batch size over time. Raises ImportError without matplotlib (the `plots` extra)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6))
    step = 10.0
    for name, record in runs.items():
        series = record.goodput_series(step)
        upper.plot([step * (i + 0.5) for i in range(len(series))], series, label=name)
        lower.step([t for t, _, _ in record.setpoints], [size for _, size, _ in record.setpoints], label=name)
    upper.set_ylabel("on-time answers a second")
    lower.set_ylabel("max_batch_size")
    lower.set_xlabel("seconds")
    upper.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
