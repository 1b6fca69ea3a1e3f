"""How a process fares on this machine after it has slept: to be read beside every figure of a mostly idle process.

    python -m benchmarks.machine

A plain loop over some megabytes of objects, back to back and after pauses, by its own CPU time. Where caches or the
hypervisor take memory away from what is idle, the same work costs many times as much after a pause, whoever does it;
a proxy that is asked once a second pays that with every request.
"""

from __future__ import annotations

import statistics
import time

__all__ = ["cpu_ms_after"]

_OBJECTS = 200_000


def cpu_ms_after(pause_s: float, repeats: int, data: list[object]) -> float:
    """Return the median CPU time in milliseconds of walking `data` right after sleeping for `pause_s`."""
    runs = []
    for _ in range(repeats):
        time.sleep(pause_s)
        began = time.thread_time()
        for _item in data:
            pass
        runs.append(1000.0 * (time.thread_time() - began))
    return statistics.median(runs)


def main() -> int:
    """Print a line for each pause."""
    data: list[object] = [object() for _ in range(_OBJECTS)]
    cpu_ms_after(0.0, 3, data)
    for pause_s in (0.0, 0.01, 0.1, 0.3, 1.0, 3.0):
        took = cpu_ms_after(pause_s, 9 if pause_s < 1.0 else 3, data)
        print(f"after {pause_s:5.2f} s asleep: {took:7.2f} ms of CPU for the same loop")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
