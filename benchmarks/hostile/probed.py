"""A proxy whose event loop is probed from within: `python -m benchmarks.hostile.probed URL [key=value ...]`.

Prints its ports as JSON, and on SIGUSR1 the longest time since the last one for which the loop did not turn: by the
clock, by the time that the loop's thread ran, and by the time that any thread of the process ran meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

from proxy.compiled import activate


class Probe:
    """Turns with the loop every two milliseconds, and remembers the longest it was kept from it."""

    def __init__(self, every_s: float = 0.002) -> None:
        self._loop = asyncio.get_running_loop()
        self._every_s = every_s
        self._reset()
        self._loop.add_signal_handler(signal.SIGUSR1, self._tell)
        self._turn()

    def _reset(self) -> None:
        self._late = self._busy = self._ours = 0.0
        self._due, self._cpu, self._all = self._loop.time(), time.thread_time(), time.process_time()

    def _turn(self) -> None:
        now, cpu, all_cpu = self._loop.time(), time.thread_time(), time.process_time()
        self._late = max(self._late, now - self._due)
        self._busy = max(self._busy, cpu - self._cpu)
        self._ours = max(self._ours, min(now - self._due, all_cpu - self._all))
        self._due, self._cpu, self._all = now + self._every_s, cpu, all_cpu
        self._loop.call_later(self._every_s, self._turn)

    def _tell(self) -> None:
        found = {"late_ms": self._late, "busy_ms": self._busy, "ours_ms": self._ours}
        print(json.dumps({name: 1e3 * seconds for name, seconds in found.items()}), flush=True)
        self._reset()


def main() -> int:
    """Serve until a signal ends it."""
    activate()
    from proxy.cli.sockets import bind
    from proxy.config.load import Override
    from proxy.config.model import Config
    from proxy.http.descriptors import needed, raise_limit
    from proxy.run import run_loop, serve

    settings: dict[str, Any] = {"upstreams": [sys.argv[1]], "state": {"enabled": False}, "log": {"level": "error"}}
    for setting in sys.argv[2:]:
        path, _, value = setting.partition("=")
        *sections, key = Override(tuple(path.split(".")), value, "").path
        place = settings
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = json.loads(value)
    config = Config.model_validate(settings)
    raise_limit(needed(config))
    data = bind("127.0.0.1", 0, key="listen", flag="--port")
    admin = bind("127.0.0.1", 0, key="admin", flag="--admin-port")
    probes = []

    def started(_: object) -> None:
        probes.append(Probe())
        print(json.dumps({"data": data.getsockname()[1], "admin": admin.getsockname()[1]}), flush=True)

    return run_loop(serve(config, data, admin, reread=lambda: config, started=started))


if __name__ == "__main__":
    sys.exit(main())
