"""The training process: rows of doubles in on stdin, a model as lines of numbers out on stdout.

It runs at the lowest priority, under a CPU limit of its own, on one thread, and knows nothing of the proxy. Input is
one JSON header line, then `rows` rows of little-endian doubles in the header's `columns`, then the lines of the model
in service, if any. Output is a model, or one JSON line `{"rejected": why}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from controller.predictor.drift import accept
from controller.predictor.features import LEXICAL
from controller.predictor.history import RELATIVE_AT, SCALE_AT
from controller.predictor.model import TOLERANCE, Group, LengthModel, Probe, parse_model, write_model

__all__ = ["EXTRA_COLUMNS", "main", "train", "unpack"]

EXTRA_COLUMNS = ("tokens", "censored", "seq", "group", "weight")
"""What follows the features in each row."""

HOLDOUT = 0.2
PROBES = 256


def main(stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Train once. Returns the exit status."""
    head, raw, lines = unpack(stdin.read())
    _lower(int(head.get("nice", 19)), int(head.get("cpu_s", 60)), int(head.get("memory_bytes", 1 << 30)))
    incumbent = parse_model(lines, names=head["names"]) if lines else None
    for line in train(raw, head["names"], head["groups"], incumbent, seed=int(head["seed"])):
        stdout.write(line.encode("ascii") + b"\n")
    stdout.flush()
    return 0


def unpack(payload: bytes) -> tuple[dict[str, Any], bytes, list[str]]:
    """Take the input apart: header, rows as packed doubles, lines of the model in service."""
    start = payload.index(b"\n") + 1
    head = json.loads(payload[:start])
    end = start + 8 * (len(head["names"]) + len(EXTRA_COLUMNS)) * int(head["rows"])
    return head, payload[start:end], payload[end:].decode("ascii").splitlines()


def train(
    raw: bytes, names: Sequence[str], groups: Sequence[Group], incumbent: LengthModel | None, *, seed: int = 0
) -> Iterator[str]:
    """Fit on the oldest 80 %, judge on the newest 20 %, then, if it may serve, fit on all and yield its lines.

    `groups` are the (model, tenant) pairs that rows refer to by index, with the scale to train on and the one in
    service. Losses are in units of the former, so that a model with long answers does not outvote the others.
    """
    import numpy as np

    from controller.predictor.boosting import fit_quantile, parity, to_ensemble, weighted_quantile
    from controller.predictor.censoring import redistribute

    table = np.frombuffer(raw, dtype="<f8").reshape(-1, len(names) + len(EXTRA_COLUMNS))
    table = table[np.argsort(table[:, len(names) + 2], kind="stable")]
    tokens, censored, seq, group, weight = table[:, len(names) :].T
    scale = np.array([max(1.0, g[2]) for g in groups])[group.astype(int)]
    before = np.array([max(1.0, g[3]) for g in groups])[group.astype(int)]

    def local(scale: Any) -> Any:
        rows = table[:, : len(names)].copy()
        rows[:, SCALE_AT] = np.log1p(scale)
        rows[:, RELATIVE_AT] -= np.log1p(scale)[:, None]
        return rows

    x = local(scale)
    cut = censored > 0.5
    relative = tokens / scale
    target = np.log1p(relative)
    # The model in service must not be judged on rows it was trained on, nor the new one on those it is fitted to.
    old = np.arange(len(target)) < round(len(target) * (1.0 - HOLDOUT))
    if incumbent is not None:
        old |= seq <= incumbent.report["through"]
    judged = ~old & ~cut

    repeats = _repeats(table[:, : len(LEXICAL)])

    def fit(rows: Any, q: float) -> Any:
        sample = redistribute(x[rows], target[rows], cut[rows], weight[rows], q)
        return fit_quantile(*sample, q, repeats=repeats, seed=seed)

    def loss(said: Any, q: float) -> float:
        gap = relative[judged] - said
        return float(np.average(np.maximum(q * gap, (q - 1.0) * gap), weights=weight[judged]))

    if not judged.any():
        yield json.dumps({"rejected": "no whole answer among the newest"})
        return
    new_loss = old_loss = theta = 0.0
    measured: dict[str, float] = {"judged": float(judged.sum())}
    for q in (0.5, 0.9):
        fresh = np.expm1(fit(old, q).predict(x[judged]))
        measured[f"loss{100 * q:.0f}"] = loss(fresh, q)
        new_loss += loss(fresh, q)
        if q == 0.9:  # split conformal: what would have made the ninth decile hold on the holdout
            excess = np.log1p(tokens[judged]) - np.log1p(scale[judged] * np.maximum(fresh, 0.0))
            theta = weighted_quantile(excess, weight[judged], q)
        whole = old & ~cut
        usual: Any = weighted_quantile(relative[whole], weight[whole], q) if whole.any() else 1.0
        measured[f"usual{100 * q:.0f}"] = loss(usual, q)
        if incumbent is not None:
            score = incumbent.p50 if q == 0.5 else incumbent.p90
            answers = [score(row) for row in local(before)[judged].tolist()]
            usual = np.expm1(np.array(answers)) * (before / scale)[judged]
        old_loss += loss(usual, q)
    verdict = accept(new_loss, old_loss)
    if not verdict.accepted:
        yield json.dumps({"rejected": verdict.reason})
        return

    everything = np.ones(len(target), dtype=bool)
    probes = x[np.linspace(0, len(x) - 1, PROBES).astype(int)]
    ensembles, expected, gaps = [], [], []
    for q in (0.5, 0.9):
        model = fit(everything, q)
        ensembles.append(to_ensemble(model))
        gap, said = parity(model, ensembles[-1], probes)
        gaps.append(gap)
        expected.append(said.tolist())
    if not max(gaps) < TOLERANCE:
        yield json.dumps({"rejected": f"exported and trained model differ by {max(gaps):.3g}"})
        return
    report = {
        "rows": len(target),
        "through": float(seq[-1]),
        "loss": new_loss,
        "theta": theta,
        "loss_before": old_loss,
        "parity": max(gaps),
        **measured,
    }
    asked: list[Probe] = list(zip(probes.tolist(), *expected, strict=True))
    yield from write_model(names, groups, ensembles[0], ensembles[1], asked, report)


def _repeats(prompts: Any) -> float:
    """Return how often a prompt occurs on average among the rows that have one, told apart by its features."""
    import numpy as np

    some = prompts[~np.isnan(prompts[:, 0])]
    return len(some) / len(np.unique(some, axis=0)) if len(some) else 1.0


def _lower(nice: int, cpu_s: int, memory_bytes: int) -> None:
    os.nice(nice)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        # What is written to, not the address space: libraries map far more of that than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
