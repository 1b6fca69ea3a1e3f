"""The storm of `benchmarks.chaos` for a few seconds, against the proxy as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import bars, run, slope


async def test_the_books_balance_after_a_short_storm(tmp_path: Path) -> None:
    outcome = await run(6.0, tmp_path, seed=1)
    missed = {bar.name: bar.value for bar in bars(outcome) if not bar.ok and "memory" not in bar.name}
    assert missed == {}, (outcome.unanswered, outcome.lost, outcome.foreign, outcome.doubled, outcome.left_over)
    assert outcome.good > 50
    assert outcome.kills > 0
    assert outcome.reloads >= 2


@pytest.mark.parametrize(("rise", "found"), [(0.0, 0.0), (600.0, 600.0)])
def test_growth_is_told_from_noise(rise: float, found: float) -> None:
    samples = [(float(t), 50_000.0 + rise * t / 60.0 + (t * 7919 % 13)) for t in range(600)]
    per_minute, interval = slope(samples)
    assert per_minute == pytest.approx(found, abs=2.0)
    assert interval < 5.0
