"""Bars 1 to 3: whole batches, against the static oracle and the published plain rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean

from benchmarks.bars import Bar
from controller.loop import PoolController
from controller.simulator.record import Record
from controller.simulator.run import GRID, LawSpec, play
from controller.simulator.scenarios import Scenario
from controller.slo import SLO
from tests.controller.build import mislead

LAWS: dict[str, tuple[str, dict[str, object]]] = {
    "deadline": ("deadline", {}),
    "aimd": ("aimd", {}),
    "gradient": ("gradient", {}),
    "step": ("step", {}),
    "published": ("step", {"admission": False, "guards": False}),
}
WINDOWS_MS = (0.0, 250.0)


@dataclass(frozen=True)
class Effort:
    """How much to run."""

    seeds: tuple[int, ...]
    sizes: tuple[int, ...] = GRID
    windows_at: tuple[int, ...] = (8, 16, 20)
    laws: tuple[str, ...] = tuple(LAWS)
    jobs: int = 1


@dataclass(frozen=True)
class Cell:
    """A scenario's outcome: goodput a second, late and refused shares by law, averaged over seeds, with its range."""

    label: str
    oracle: float
    oracle_at: str
    goodput: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    late: dict[str, float]
    refused: dict[str, float]

    def ratio(self, law: str = "deadline", to: str | None = None) -> float:
        """Return a law's goodput relative to the oracle, or to another law."""
        base = self.oracle if to is None else self.goodput[to]
        return self.goodput[law] / base if base else float("inf")


def run(
    scenario: Scenario, law: LawSpec, seed: int, on_tick: Callable[[float, PoolController], None] | None = None
) -> Record:
    return play(
        law,
        scenario.requests(seed),
        scenario.plant(),
        SLO(e2e_s=scenario.slo_s),
        horizon_s=scenario.horizon_s,
        seed=seed,
        on_tick=on_tick,
    )


def measure(scenario: Scenario, effort: Effort) -> Cell:
    """Search the oracle and play the laws, all on the same arrivals and the same luck."""
    best, best_at = -1.0, ""
    for size in effort.sizes:
        for window in WINDOWS_MS if size in effort.windows_at else (0.0,):
            spec = LawSpec("fixed", size=size, window_ms=window)
            value = fmean(run(scenario, spec, seed).figures().goodput for seed in effort.seeds)
            if value > best:
                best, best_at = value, f"{size}" if not window else f"{size} after {window:g} ms"
    goodput, low, high, late, refused = {}, {}, {}, {}, {}
    for name in effort.laws:
        law, options = LAWS[name]
        figures = [run(scenario, LawSpec(law, options=options), seed).figures() for seed in effort.seeds]
        values = [f.goodput for f in figures]
        goodput[name], low[name], high[name] = fmean(values), min(values), max(values)
        late[name] = fmean(f.late_share for f in figures)
        refused[name] = fmean(f.refused_share + f.shed_share for f in figures)
    return Cell(scenario.label, best, best_at, goodput, low, high, late, refused)


_SHARED: list[tuple[Scenario, Effort]] = []


def _measure_shared(index: int) -> Cell:
    return measure(*_SHARED[index])


def measure_all(scenarios: Sequence[Scenario], effort: Effort) -> list[Cell]:
    """Measure every scenario, printing each as it is done."""
    print(
        f"{'scenario':38} {'oracle/s':>8} at {'size':16} goodput in % of it (range over seeds), late, refused or shed"
    )
    cells = []
    if effort.jobs > 1:
        # Scenarios hold functions, which do not travel between processes; a fork finds them where they were.
        _SHARED[:] = [(scenario, effort) for scenario in scenarios]
        with get_context("fork").Pool(effort.jobs) as pool:
            for cell in pool.imap(_measure_shared, range(len(scenarios))):
                _show(cell)
                cells.append(cell)
        return cells
    for scenario in scenarios:
        cells.append(measure(scenario, effort))
        _show(cells[-1])
    return cells


def _show(cell: Cell) -> None:
    parts = []
    for law in cell.goodput:
        low, high = 100 * cell.low[law] / cell.oracle, 100 * cell.high[law] / cell.oracle
        parts.append(
            f"{law} {100 * cell.ratio(law):.1f} ({low:.0f}-{high:.0f}) "
            f"{100 * cell.late[law]:.1f}% {100 * cell.refused[law]:.0f}%"
        )
    print(f"{cell.label:38} {cell.oracle:8.3f} at {cell.oracle_at:16} " + " | ".join(parts), flush=True)


def late_limit(cell: Cell) -> float:
    """Return the late share that the bar allows in a cell."""
    if "random lengths" in cell.label:
        return 0.03
    return 0.025 if "bursts" in cell.label or "knee" in cell.label else 0.015


AGAINST_PUBLISHED = (("overload", 3.0), ("bursts", 10.0), ("steady 70 %", 1.8))
"""How many times the goodput of the published rule. Whether it collapses in steady traffic depends on the seed."""


def design_bars(cells: Sequence[Cell], published: Sequence[tuple[str, float]] = AGAINST_PUBLISHED) -> list[Bar]:
    """Bars 1 and 2 over the design cells; those against a law that was not run are left out."""
    plain = [cell for cell in cells if "knee" not in cell.label]
    knees = [cell for cell in cells if "knee" in cell.label]
    bars = [
        Bar.above("deadline / static oracle, worst cell", min((c.ratio() for c in plain), default=1.0), 0.98),
        Bar.above("deadline / static oracle, mean of cells", fmean(cell.ratio() for cell in cells), 1.015),
        Bar.below(
            "late among admitted over what is allowed, worst cell",
            max(cell.late["deadline"] / late_limit(cell) for cell in cells),
            1.0,
        ),
    ]
    if knees:
        bars.insert(1, Bar.above("deadline / static oracle, worst knee", min(c.ratio() for c in knees), 0.97))
    for name, times in published:
        group = [cell for cell in plain if cell.label.startswith(name + " @") and "random" not in cell.label]
        if group and "published" in group[0].goodput:
            shown = ", ".join(f"{c.label} {c.ratio('deadline', 'published'):.1f}" for c in group)
            print(f"times the goodput of the published rule: {shown}")
            ratio = fmean(c.goodput["deadline"] for c in group) / fmean(c.goodput["published"] for c in group)
            bars.append(Bar.above(f"deadline / published rule, {name}, over {len(group)} targets", ratio, times))
    if "step" not in cells[0].goodput:
        return bars
    bars.append(
        Bar.above("deadline / step with our admission, worst", min(c.ratio("deadline", "step") for c in cells), 0.99)
    )
    bursts = [cell for cell in cells if cell.label.startswith("bursts")]
    if bursts:
        value = min(cell.ratio("deadline", "step") for cell in bursts)
        bars.append(Bar.above("deadline / step with our admission, bursts", value, 1.04))
    return bars


def fresh_bars(cells: Sequence[Cell]) -> list[Bar]:
    """Bar 1 over days that no constant was tuned on."""
    return [Bar.above("deadline / static oracle, worst fresh cell", min(cell.ratio() for cell in cells), 0.97)]


def recovery_bars(scenarios: Sequence[Scenario], effort: Effort) -> list[Bar]:
    """Bar 3: goodput in the minute that begins 10 s (40 s with random lengths) after each change.

    The phase's oracle is the fixed size that is best in that very minute, which knows the future.
    """
    worst = float("inf")
    print("recovery after a change, in % of the best fixed size of the same minute:")
    for scenario in scenarios:
        settle = 40.0 if scenario.random_lengths else 10.0
        laws = [LawSpec("fixed", size=size) for size in effort.sizes] + [LawSpec("deadline")]
        runs = [[run(scenario, law, seed) for seed in effort.seeds] for law in laws]
        for change in scenario.phases:
            span = (change + settle, min(scenario.horizon_s, change + settle + 60.0))
            values = [fmean(record.figures(*span).goodput for record in records) for records in runs]
            share = values[-1] / max(values[:-1])
            worst = min(worst, share)
            print(f"  {scenario.label:36} at {change:4.0f} s: {100 * share:.1f}")
    return [Bar.above("recovery, worst change", worst, 0.93)]


def healing_bars(scenario: Scenario, effort: Effort) -> list[Bar]:
    """Bar 3: goodput from 15 s after the service model was corrupted, against the run without."""
    start = scenario.horizon_s / 2.0
    span = (start + 15.0, start + 75.0)
    bars = []
    for factor in (10.0, 0.1):
        shares = []
        for seed in effort.seeds:
            done: list[float] = []

            def corrupt(now: float, pool: PoolController, done: list[float] = done, factor: float = factor) -> None:
                if now >= start and not done:
                    done.append(now)
                    mislead(pool, factor)

            broken = run(scenario, LawSpec("deadline"), seed, corrupt).figures(*span).goodput
            shares.append(broken / run(scenario, LawSpec("deadline"), seed).figures(*span).goodput)
        bars.append(Bar.above(f"goodput 15 s after estimates were off by x{factor:g}", fmean(shares), 0.9))
    return bars
