"""Random exchanges on kept connections, with junk behind every fifth answer: nothing of one reaches another.

The property test of `tests.support.crossing`, many times over: answers in every framing, with trailers, interim
answers and heads that come back, cut at random places, several callers at once. Each caller must see what its own
answer says.
"""

from __future__ import annotations

from benchmarks.bars import Bar
from tests.support.crossing import Crossing

__all__ = ["measure"]

_EXCHANGES = 200_000
_QUICK = 20_000
_ROUND = 10_000
"""Exchanges drawn from one seed."""


def measure(quick: bool) -> list[Bar]:
    """Run the exchanges and count what crossed, was lost, or kept a connection that must not be."""
    count = _QUICK if quick else _EXCHANGES
    faults: list[str] = []
    junked = reused = 0
    for seed in range(count // _ROUND):
        crossing = Crossing(seed)
        crossing.run(_ROUND)
        faults += crossing.faults
        junked += crossing.junked
        reused += crossing.reused
    print(f"{count} exchanges, {junked} disturbed, {reused} over a kept connection")
    for fault in faults[:5]:
        print(f"  {fault}")
    return [
        Bar.below(f"exchanges of {count} that crossed or were not as on a connection of their own", len(faults), 0),
        Bar.above("of them disturbed by bytes behind an answer", junked, count // 10),
    ]
