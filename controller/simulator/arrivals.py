"""When requests come, and how large they are: generators and recorded traces."""

from __future__ import annotations

import csv
import gzip
import json
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

__all__ = [
    "Request",
    "chat_lengths",
    "gamma_arrivals",
    "mmpp_arrivals",
    "poisson_arrivals",
    "read_own_log",
    "read_trace",
    "requests_at",
    "speed_up",
]

_ACCESS: Final = "trimtab.access"
"""The logger of the access log."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a simulated day."""

    arrival: float
    """Seconds from the start."""
    prompt_tokens: int = 512
    output_tokens: int = 100
    predicted_tokens: float | None = None
    """What a length predictor says; None without one."""
    tenant: str = ""
    klass: str = "default"
    express: bool = False
    """Whether its class takes the express lane."""


def poisson_arrivals(
    rate: Callable[[float], float], highest: float, horizon_s: float, rng: random.Random
) -> list[float]:
    """Draw arrival times at `rate(t)` requests a second by thinning; `highest` bounds the rate."""
    times: list[float] = []
    now = rng.expovariate(highest)
    while now < horizon_s:
        if rng.random() * highest < rate(now):
            times.append(now)
        now += rng.expovariate(highest)
    return times


def gamma_arrivals(rate: float, cv: float, horizon_s: float, rng: random.Random) -> list[float]:
    """Draw renewal arrivals whose gaps are Gamma with the given coefficient of variation (shape 1 / cv^2)."""
    shape = 1.0 / (cv * cv)
    scale = 1.0 / (rate * shape)
    times: list[float] = []
    now = rng.gammavariate(shape, scale)
    while now < horizon_s:
        times.append(now)
        now += rng.gammavariate(shape, scale)
    return times


def mmpp_arrivals(
    rates: tuple[float, float], stays_s: tuple[float, float], horizon_s: float, rng: random.Random
) -> list[float]:
    """Draw from a Markov-modulated Poisson process: two `rates` a second, exponential stays of mean `stays_s`."""
    times: list[float] = []
    start, state = 0.0, 0
    while start < horizon_s:
        end = min(horizon_s, start + rng.expovariate(1.0 / stays_s[state]))
        now = start + rng.expovariate(rates[state])
        while now < end:
            times.append(now)
            now += rng.expovariate(rates[state])
        start, state = end, 1 - state
    return times


# Quantiles of answer lengths in open chat (tokens), joined by straight lines.
_CHAT = ((0.0, 1.0), (0.1, 13.0), (0.5, 140.0), (0.9, 397.0), (0.99, 502.0), (1.0, 511.0))


def chat_lengths(count: int, mean: float, rng: random.Random) -> list[int]:
    """Draw output lengths shaped like open chat, scaled to `mean` tokens."""
    shares = [share for share, _ in _CHAT]
    area = sum((b - a) * (x + y) / 2.0 for (a, x), (b, y) in pairwise(_CHAT))
    lengths = []
    for _ in range(count):
        u = rng.random()
        right = min(len(_CHAT) - 1, bisect_right(shares, u))
        (a, x), (b, y) = _CHAT[right - 1], _CHAT[right]
        lengths.append(max(1, round((x + (y - x) * (u - a) / (b - a)) * mean / area)))
    return lengths


def requests_at(
    times: Sequence[float],
    *,
    prompt_tokens: int = 512,
    outputs: Sequence[int] | None = None,
    output_tokens: int = 100,
) -> list[Request]:
    """Turn arrival times into requests, all alike or with the given output lengths."""
    if outputs is None:
        return [Request(time, prompt_tokens, output_tokens) for time in times]
    return [Request(time, prompt_tokens, length) for time, length in zip(times, outputs, strict=True)]


def speed_up(requests: Sequence[Request], factor: float, horizon_s: float | None = None) -> list[Request]:
    """Replay `factor` times as fast, which keeps the dependence between arrivals; stop at `horizon_s`."""
    moved = [
        Request(
            request.arrival / factor,
            request.prompt_tokens,
            request.output_tokens,
            request.predicted_tokens,
            request.tenant,
            request.klass,
        )
        for request in requests
    ]
    return moved if horizon_s is None else [request for request in moved if request.arrival < horizon_s]


_TIMES = ("t_s", "arrival", "arrived_at", "timestamp", "ts")
_PROMPTS = ("prompt_tokens", "context_tokens", "input_tokens")
_OUTPUTS = ("output_tokens", "generated_tokens", "completion_tokens")


def read_trace(path: Path) -> list[Request]:
    """Read a recorded day, sorted by arrival and shifted to start at 0.

    CSV with a header or JSON lines, gzipped or not. Times are seconds (`t_s`, `arrival`, `ts`, ...); `prompt_tokens`
    (or `context_tokens`, `input_tokens`) and `output_tokens` (or `generated_tokens`, `completion_tokens`) are taken
    where present; rows without them count as 512 and 100. Raises ValueError, naming file and line, for anything else.
    """
    return _day(path, enumerate(_rows(path), start=1))


def read_own_log(path: Path) -> list[Request]:
    """Read a day from what the proxy itself logged (`log.format: json`), sorted and shifted to start at 0.

    It may have written other things between the lines of the access log; those are passed over. Where an upstream
    told no tokens they count as 512 and 100. Raises ValueError when there is no line of an access log in it.
    """

    def entries() -> Iterator[tuple[int, dict[str, object]]]:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(row, dict) and "arrival" in row and row.get("logger", _ACCESS) == _ACCESS:
                    known = {name: row[name] for name in ("prompt_tokens", "output_tokens") if row.get(name)}
                    yield number, {"arrival": row["arrival"], "tenant": row.get("tenant")} | known

    try:
        return _day(path, entries())
    except _NoRequests:
        hint = "it has none of an access log in JSON lines (log.access: true, log.format: json)"
        raise _NoRequests(f"{path}: {hint}") from None


class _NoRequests(ValueError):
    """There is nothing to play."""


def _day(path: Path, rows: Iterable[tuple[int, dict[str, object]]]) -> list[Request]:
    requests: list[Request] = []
    for number, row in rows:
        try:
            time = _number(row, _TIMES)
            prompt, output = _number(row, _PROMPTS), _number(row, _OUTPUTS)
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
        if time is None:
            raise ValueError(f"{path}, row {number}: no arrival time under any of {', '.join(_TIMES)}")
        requests.append(
            Request(
                time,
                max(1, int(512 if prompt is None else prompt)),
                max(1, int(100 if output is None else output)),
                tenant=str(row.get("tenant") or ""),
            )
        )
    if not requests:
        raise _NoRequests(f"{path}: no requests in it")
    requests.sort(key=lambda request: request.arrival)
    first = requests[0].arrival
    return [
        Request(r.arrival - first, r.prompt_tokens, r.output_tokens, r.predicted_tokens, r.tenant) for r in requests
    ]


def _number(row: dict[str, object], names: Sequence[str]) -> float | None:
    """Return the first of `names` that the row has; None without any. Raises ValueError when it is no number."""
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return float(str(value))
    return None


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _rows(path: Path) -> Iterator[dict[str, object]]:
    with _open(path) as lines:
        if ".csv" in path.suffixes:
            for record in csv.DictReader(lines):
                yield dict(record)
            return
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: neither a .csv file nor JSON lines") from error
            if isinstance(row, dict):
                yield row
