"""The window follows an explicit objective, and nothing else."""

from __future__ import annotations

from controller.load import Load
from controller.loop import PoolController
from tests.controller.build import controller, observation


def after(pool: PoolController, e2e_s: float, load: Load, ticks: int = 1) -> float:
    """Return the window after so many looks at answers that took `e2e_s`, of a target of 10 s, from the queue on."""
    now = 100.0
    for _ in range(ticks):
        now += 6.0
        for index in range(40):
            pool.observe(
                observation(
                    1.0, queue=e2e_s - 1.0, done=now + index / 100, batch=8, generation=pool.setpoints.generation
                )
            )
        pool.tick(now + 0.5, load)
    return pool.setpoints.window_ms


QUIET = Load(queued=2, inflight=8, inflight_calls=1, slots=1, app_limited=True)
SEVERAL_BUSY = Load(queued=9, inflight=16, inflight_calls=2, slots=2, app_limited=True)
SEVERAL_FREE = Load(queued=0, inflight=8, inflight_calls=1, slots=2, app_limited=True)
EFFICIENT = {"objective": "efficiency"}


def test_where_an_upstream_clocks_itself_holding_back_is_given_up() -> None:
    assert after(controller(law="deadline", mode="merge", window_ms=80.0), 2.0, QUIET, ticks=8) == 0.0


def test_where_the_upstream_batches_by_itself_no_objective_stretches_it() -> None:
    assert after(controller(law="deadline", options=EFFICIENT, mode="gate", window_ms=8.0), 2.0, QUIET, 5) == 0.0


def test_efficiency_stretches_it_by_a_tenth_of_its_range_while_there_is_time() -> None:
    assert after(controller(law="aimd", options=EFFICIENT, mode="merge"), 7.0, QUIET, ticks=3) == 30.0


def test_efficiency_keeps_a_fifth_of_the_target_free() -> None:
    assert after(controller(law="aimd", options=EFFICIENT, mode="merge", window_ms=20.0), 8.5, QUIET, 3) == 20.0


def test_lateness_that_is_proven_halves_it() -> None:
    assert after(controller(law="aimd", options=EFFICIENT, mode="merge", window_ms=80.0), 10.5, QUIET) == 40.0


def test_goodput_stretches_it_only_while_all_of_several_upstreams_are_busy() -> None:
    assert after(controller(law="aimd", mode="merge"), 2.0, SEVERAL_BUSY, ticks=2) == 20.0
    assert after(controller(law="aimd", mode="merge", window_ms=20.0), 2.0, SEVERAL_FREE) == 0.0
