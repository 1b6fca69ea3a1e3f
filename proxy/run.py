"""Running a proxy as a process: uvloop, signals, and an orderly way out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from proxy.admin.steering import Steering
from proxy.app import Proxy
from proxy.config.errors import ConfigError
from proxy.config.model import Config
from proxy.process.allocator import return_large_blocks
from proxy.process.notify import Notifier
from proxy.process.watchdog import Watchdog

__all__ = ["ExitSignals", "calm_collector", "reload", "run_loop", "serve"]

_LOG = logging.getLogger("trimtab")
_T = TypeVar("_T")
_CLOSING_S: Final = 3.0


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end, on uvloop where there is one; its result, where that is a number, is an exit code."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    code = 1
    with contextlib.ExitStack() as last, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            result = runner.run(main)
            code = result if isinstance(result, int) else 0
        finally:
            # To close the loop is to wait for its threads: a name server may keep them for half a minute.
            leaving = threading.Timer(_CLOSING_S, _leave, (code,))
            leaving.daemon = True
            leaving.start()
            last.callback(leaving.cancel)
    return result


def _leave(code: int) -> NoReturn:
    """End the process although threads of its loop are at work: everything that matters has been closed."""
    _LOG.warning("a look-up or another piece of blocking work does not end; it is not waited for")
    logging.shutdown()
    os._exit(code)


class ExitSignals:
    """SIGTERM asks to drain, SIGINT to drain without waiting for balancers; a second one of either to stop now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self.gently = True
        """Whether a balancer may have to notice first."""

    def install(self, *, hangup: Callable[[], object] | None = None) -> None:
        """Take over the signals. `hangup` is called on SIGHUP; without it, SIGHUP asks to drain as well."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ask, True)
        loop.add_signal_handler(signal.SIGINT, self._ask, False)
        if hangup is None:
            loop.add_signal_handler(signal.SIGHUP, self._ask, False)
        else:
            loop.add_signal_handler(signal.SIGHUP, hangup)

    @staticmethod
    def take_hangups() -> None:
        """Let SIGHUP through that was held back while the program started, one that came meanwhile included."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _ask(self, gently: bool) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.gently = gently
        self.asked.set()

    async def unless_insisted(self, work: Coroutine[Any, Any, object]) -> bool:
        """Run `work` to its end, or until somebody insists. Returns whether it ended."""
        task = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(self.insisted.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return False
        task.result()
        return True


async def serve(
    config: Config,
    data: socket.socket,
    admin: socket.socket,
    *,
    reread: Callable[[], Config],
    started: Callable[[Proxy], None] = lambda proxy: None,
) -> int:
    """Run one proxy until a signal ends it; return the exit code."""
    notifier = Notifier.take(os.environ)
    proxy = Proxy(config, reread=reread)
    watchdog = Watchdog(notifier)
    signals = ExitSignals()
    reloads: set[asyncio.Task[None]] = set()

    def hangup() -> None:
        task = asyncio.ensure_future(reload(proxy, notifier))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    signals.install(hangup=hangup)
    try:
        await proxy.start(data, admin)
        calm_collector()
        return_large_blocks()
        watchdog.start()
        started(proxy)
        notifier.say("READY=1")
        signals.take_hangups()
        await signals.asked.wait()
        notifier.say("STOPPING=1")
        await wind_down(proxy, signals)
    finally:
        await proxy.stop()
        watchdog.stop()
    return 0


def calm_collector() -> None:
    """Keep the garbage collector from walking, over and over, what is there for good.

    A request leaves no cycles behind when it goes well, so looking for them can wait; not for so long that looking
    holds up the event loop: walking 20,000 new objects was measured to take 2 ms and more, 5,000 half a millisecond.
    What thousands of slow clients have under way is new, too, and is walked once more: four times as much at most.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 4, 100)


async def wind_down(proxy: Proxy, signals: ExitSignals) -> None:
    """Drain as gently as was asked, and say what happens."""
    inside = proxy.lifecycle.inside
    _LOG.info("draining: %d request%s under way", inside, "" if inside == 1 else "s")
    grace_s = proxy.config.drain.grace_s if signals.gently else 0.0
    if not await signals.unless_insisted(proxy.drain(grace_s=grace_s)):
        _LOG.warning("stopped at once; %d under way were cut off", proxy.lifecycle.inside)


async def reload(proxy: Steering, notifier: Notifier) -> None:
    """Reload on SIGHUP; a configuration that is not valid is reported and the old one stays."""
    notifier.say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        done = await proxy.reload()
    except ConfigError as error:
        _LOG.error("reload refused, the old configuration stays: %s", "; ".join(str(error).splitlines()))
        return
    finally:
        notifier.say("READY=1")
    _LOG.info("reloaded: generation %d, changed %s", done.generation, ", ".join(done.changed) or "nothing")
    if done.restart_required:
        _LOG.warning("needs a restart: %s", ", ".join(done.restart_required))
