"""One run of the benchmark: its processes and their cores, how long and how often it measures, what went wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import Bar
from benchmarks.proxy.processes import Processes

__all__ = ["CHAT", "EMBED", "FULL", "QUICK", "SENTENCE", "Bench", "Effort", "Measure", "Span"]

CHAT = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).encode()
SENTENCE = "a sentence of some forty characters, so."
EMBED = json.dumps({"model": "mock", "input": SENTENCE})

Measure = Callable[[], list[Bar]]
"""What is left of a test once its processes have been started: to wait for them, and measure."""


class Span(NamedTuple):
    """How long one run of the load client lasts, in seconds."""

    warm_s: float
    """Sent, and not measured."""
    measured_s: float

    def options(self) -> list[str]:
        """Say it to the load client."""
        return ["--warm", f"{self.warm_s:g}", "--secs", f"{self.measured_s:g}"]


class Effort(NamedTuple):
    """How long and how often is measured, and whether more than the bars are about."""

    repeats: int
    chat: Span
    stream: Span
    """Measured for longer than a stream lasts (0.65 s), so that some begin and some end meanwhile."""
    hold_s: float
    merge: Span
    model: Span
    lone_s: float
    lone_rate: float
    """Requests a second."""
    overload: Span
    counted: float
    """Share of the requests whose instructions are counted."""
    all_peers: bool
    """Whether peers are measured, too, in what no bar compares them in."""


FULL = Effort(
    repeats=5,
    chat=Span(0.5, 2),
    stream=Span(2, 2),
    hold_s=3,
    merge=Span(1, 2),
    model=Span(0.5, 2),
    lone_s=6,
    lone_rate=2,
    overload=Span(2, 60),
    counted=1,
    all_peers=True,
)
QUICK = Effort(
    repeats=2,
    chat=Span(0.2, 0.35),
    stream=Span(0.2, 0.7),
    hold_s=1,
    merge=Span(0.2, 0.35),
    model=Span(0.1, 0.35),
    lone_s=2,
    lone_rate=4,
    overload=Span(1, 2.5),
    counted=0.5,
    all_peers=False,
)


@dataclass(frozen=True)
class Bench:
    """What the tests of one run share."""

    processes: Processes
    tools: Path
    """Where the mock and the load client are."""
    ports: Iterator[int]
    effort: Effort
    proxy_core: str
    other_core: str
    failures: list[str] = field(default_factory=list)
    """What was to be measured and was not, a line each."""

    def mock(self, *arguments: str) -> int:
        """Start a mock model server and return its port."""
        port = next(self.ports)
        argv = [str(self.tools / "mock"), "--port", str(port), *arguments]
        self.processes.start(argv, self.other_core, name=f"mock-{port}")
        return port

    def load(self, url: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Run the load client to its end, beside the mock, and return what it measured."""
        return self.processes.load(self.tools, url, arguments, self.other_core)

    def fail(self, what: str) -> None:
        """Say that something was not measured; the run ends with an error then."""
        print(what, file=sys.stderr)
        self.processes.keep = True
        self.failures.append(what)
