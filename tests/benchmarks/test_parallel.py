"""Works in several processes print and return what they would one after the other."""

from __future__ import annotations

import os

import pytest

from benchmarks.bars import Bar
from benchmarks.parallel import Work, in_parallel


def work(number: int) -> Work:
    def do() -> list[Bar]:
        print(f"work {number}")
        return [Bar.above(f"bar {number}", float(number), 1.0)]

    return do


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_bars_and_output_keep_their_order(processes: int, capsys: pytest.CaptureFixture[str]) -> None:
    bars = in_parallel([work(number) for number in range(4)], processes)
    assert [bar.value for bar in bars] == [0.0, 1.0, 2.0, 3.0]
    assert capsys.readouterr().out == "work 0\nwork 1\nwork 2\nwork 3\n"


def test_they_run_outside_of_this_process() -> None:
    def where() -> list[Bar]:
        return [Bar.above("process", float(os.getpid()), 0.0)]

    assert os.getpid() not in [bar.value for bar in in_parallel([where, where], 2)]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_one_raises_is_raised(processes: int) -> None:
    def fails() -> list[Bar]:
        raise RuntimeError("no model was trained")

    with pytest.raises(RuntimeError, match="no model was trained"):
        in_parallel([work(1), fails], processes)
