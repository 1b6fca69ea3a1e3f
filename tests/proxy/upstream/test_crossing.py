"""Answers of every shape on kept connections, junk behind them: nobody sees anything but their own."""

from __future__ import annotations

import pytest

from tests.support.crossing import Crossing


@pytest.mark.parametrize("seed", range(4))
def test_nothing_crosses_and_no_connection_is_kept_or_closed_wrongly(seed: int) -> None:
    crossing = Crossing(seed)
    crossing.run(2500)
    assert crossing.faults == []
    assert crossing.junked > 250, "the exchanges are to be disturbed"
    assert crossing.reused > 500, "and to share connections"


def test_callers_that_wait_for_each_other_share_one_connection() -> None:
    crossing = Crossing(7, callers=1)
    crossing.run(2500)
    assert crossing.faults == []
