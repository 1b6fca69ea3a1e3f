"""The first process: it holds the port, starts the workers, replaces those that die, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from proxy.config.model import Config
from proxy.process.notify import Notifier
from proxy.process.watchdog import STUCK_S, Watchdog
from proxy.run import ExitSignals, calm_collector, reload
from proxy.workers.leader import Leader
from proxy.workers.member import Member
from proxy.workers.protocol import Channel
from proxy.workers.watch import CHECK_S, Watch

__all__ = ["Backoff", "supervise"]

_LOG = logging.getLogger("trimtab")
_START_S = 60.0
_STACKS_S = 2.0
"""So long a worker may take to write its stacks down before it is killed."""


class Backoff:
    """How long to wait before a worker is replaced: at once after a good life, else twice as long each time."""

    def __init__(self, first_s: float = 0.1, most_s: float = 10.0, good_s: float = 10.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._good_s = good_s
        self._next_s = 0.0

    def after(self, lived_s: float) -> float:
        """Return the pause after a worker that lived for `lived_s`."""
        if lived_s >= self._good_s:
            self._next_s = 0.0
        pause, self._next_s = self._next_s, min(self._most_s, max(self._first_s, 2.0 * self._next_s))
        return pause


class Supervisor:
    """Keeps one worker alive for each listening socket.

    The sockets stay open here, so connections that arrive while a worker is replaced wait in its queue.
    """

    def __init__(self, leader: Leader, sockets: Sequence[socket.socket]) -> None:
        self._leader = leader
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Start everybody; say whether all came up."""
        started = [asyncio.Event() for _ in self._sockets]
        self._keepers = [self._loop.create_task(self._keep(number, up)) for number, up in enumerate(started)]
        try:
            async with asyncio.timeout(_START_S):
                for keeper, up in zip(self._keepers, started, strict=True):
                    waiting = self._loop.create_task(up.wait())
                    await asyncio.wait((keeper, waiting), return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        except TimeoutError:
            return False
        self._watcher = self._loop.create_task(self._look_after())
        return all(up.is_set() for up in started)

    async def _look_after(self) -> None:
        """End workers that stand still; whoever keeps them brings others."""
        watch = Watch()
        while True:
            await asyncio.sleep(CHECK_S)
            members = [member for member in self._leader.members.values() if member.ready.is_set()]
            for member in watch.lost(members, self._loop.time()):
                process = self._processes.get(member.number)
                if process is None or process.pid != member.pid or process.returncode is not None:
                    continue
                _LOG.error(
                    "worker %d (process %d) has stood still for %g s: it is killed, its stacks follow",
                    member.number, member.pid, STUCK_S,
                )  # fmt: skip
                # `faulthandler` writes the stacks of all threads, whatever they are at, and lets it end.
                process.send_signal(signal.SIGABRT)
                try:
                    async with asyncio.timeout(_STACKS_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()

    async def _keep(self, number: int, up: asyncio.Event) -> None:
        """Run a worker, and another after it, until the end is near. The first one must come up."""
        backoff = Backoff()
        while not self._leader.draining:
            begun = self._loop.time()
            process, member = await self._spawn(number)
            ready = self._loop.create_task(member.ready.wait())
            ended = self._loop.create_task(process.wait())
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                up.set()
                _LOG.info("worker %d serves (process %d)", number, process.pid)
            code = await ended
            ready.cancel()
            await member.gone.wait()
            self._processes.pop(number, None)
            if self._leader.draining or not up.is_set():
                return
            pause_s = backoff.after(self._loop.time() - begun)
            self._leader.restarts += 1
            _LOG.log(
                logging.INFO if code == 0 else logging.ERROR,
                "worker %d ended with code %d and is replaced%s",
                number, code, f" in {pause_s:g} s" if pause_s else "",
            )  # fmt: skip
            await asyncio.sleep(pause_s)

    async def _spawn(self, number: int) -> tuple[asyncio.subprocess.Process, Member]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        listening = self._sockets[number].fileno()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "proxy.workers", str(theirs.fileno()), str(listening),
                pass_fds=(theirs.fileno(), listening), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._processes[number] = process
        ours.setblocking(False)
        return process, self._leader.join(number, process.pid, await Channel.on(ours))

    async def stop(self) -> None:
        """End whoever is left, by force in the end."""
        if self._watcher is not None:
            self._watcher.cancel()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for keeper in self._keepers:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        for process in tuple(self._processes.values()):
            await process.wait()


async def supervise(
    config: Config,
    data: Sequence[socket.socket],
    admin: socket.socket,
    *,
    reread: Callable[[], Config],
    started: Callable[[object], None] = lambda leader: None,
) -> int:
    """Run one worker for each of the sockets in `data` until a signal ends them; return the exit code."""
    notifier = Notifier.take(os.environ)
    leader = Leader(config, reread=reread)
    watchdog = Watchdog(notifier)
    supervisor = Supervisor(leader, data)
    signals = ExitSignals()
    reloads: set[asyncio.Task[None]] = set()

    def hangup() -> None:
        task = asyncio.ensure_future(reload(leader, notifier))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    signals.install(hangup=hangup)
    try:
        await leader.open(admin)
        calm_collector()
        if not await supervisor.start():
            _LOG.error("a worker did not come up; stopping")
            return 1
        watchdog.start()
        started(leader)
        notifier.say("READY=1")
        signals.take_hangups()
        await signals.asked.wait()
        notifier.say("STOPPING=1")
        inside = leader.inside
        _LOG.info("draining: %d request%s under way", inside, "" if inside == 1 else "s")
        grace_s = config.drain.grace_s if signals.gently else 0.0
        if not await signals.unless_insisted(leader.drain(grace_s=grace_s)):
            _LOG.warning("stopped at once; %d under way were cut off", leader.inside)
    finally:
        await leader.stop()
        await supervisor.stop()
        watchdog.stop()
    return 0
