"""Say what was found: a table for people, JSON for everybody else."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.compat.checks import Outcome
from benchmarks.compat.compare import Verdict

__all__ = ["as_json", "details", "table"]

_HEAD = (
    "server",
    "version",
    "requests",
    "clients",
    "merged",
    "differs",
    "refused by Trimtab itself",
    "the server's own variations",
    "adds",
)


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each server, in Markdown."""
    rows = [_HEAD, tuple("---" for _ in _HEAD), *(_row(outcome) for outcome in outcomes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def details(outcome: Outcome) -> list[str]:
    """A line for each difference."""
    if outcome.failure:
        return [f"{outcome.server.name}: {outcome.failure}"]
    return [f"{outcome.server.name}: {v.name}: {told}" for v in outcome.verdicts for told in v.differences]


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Every verdict."""
    document = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "servers": [_document(outcome) for outcome in outcomes],
    }
    return json.dumps(document, indent=1)


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "server": outcome.server.name,
        "title": outcome.server.title,
        "version": outcome.server.version,
        "failure": outcome.failure or None,
        "largest_batch": outcome.largest_batch,
        "requests": [vars(verdict) for verdict in outcome.requests],
        "merged": [vars(verdict) for verdict in outcome.merged],
        "clients": {name: [vars(v) for v in verdicts] for name, verdicts in outcome.clients.items()},
    }


def _row(outcome: Outcome) -> tuple[str, ...]:
    server = outcome.server
    if outcome.failure:
        reason = " ".join(outcome.failure.split())[:200]
        return (server.title, server.version, "-", "-", "-", f"did not run: {reason}", "-", "-", "-")
    clients = ", ".join(f"{name.removeprefix('with_')} {len(v)}" for name, v in outcome.clients.items()) or "-"
    merged = f"{len(outcome.merged)} at once, up to {outcome.largest_batch} a call" if outcome.merged else "-"
    differing = [verdict.name for verdict in outcome.verdicts if not verdict.same]
    varying = sum(bool(verdict.varies) for verdict in outcome.verdicts)
    added = sorted({name for verdict in outcome.verdicts for name in verdict.adds})
    return (
        server.title,
        server.version,
        _counted(outcome.requests),
        clients,
        merged,
        "nothing" if not differing else f"{len(differing)}: {', '.join(differing)}",
        str(sum(verdict.refused for verdict in outcome.requests)),
        str(varying),
        ", ".join(f"`{name}`" for name in added) or "-",
    )


def _counted(verdicts: Sequence[Verdict]) -> str:
    refused = sum(verdict.status >= 400 for verdict in verdicts)
    return f"{len(verdicts)} ({refused} errors)"
