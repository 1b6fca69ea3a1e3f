"""Engine processes forked from one that has imported torch and done nothing yet, so that they are there at once.

    python -m tests.backend.engine.nursery FD    # FD: one end of a pair of sockets that keep messages apart

Each message brings the far end of an engine's socket. The answers are `[pid]` when it runs and `[pid, code]` when it
has ended. When the other end of FD is closed, so are all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backend.engine.client import ENGINE_ENVIRONMENT

__all__ = ["Nursery", "nursery"]


def _serve(control: socket.socket) -> None:
    from backend.engine import process
    from tests.backend.engine import faulty

    assert faulty
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, *children], [], [])
        for one in ready:
            if one is not control:
                pid = children.pop(one)
                os.close(one)
                _, status = os.waitpid(pid, 0)
                control.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
            if not message:
                for pid in children.values():
                    os.kill(pid, signal.SIGKILL)
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                sys.argv = ["backend.engine.process", str(descriptors[0])]
                code = 1
                try:
                    code = process.main()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            os.close(descriptors[0])
            children[os.pidfd_open(pid)] = pid
            control.send(json.dumps([pid]).encode())


class _Process:
    """As much of `asyncio.subprocess.Process` as the client uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        if not self.ended.done():
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """Starts engines, in the place of `backend.engine.client._spawn`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._started: asyncio.Queue[_Process] = asyncio.Queue()
        self._running: dict[int, _Process] = {}

    def heard(self) -> None:
        """Read what the process says: somebody runs, or has ended."""
        pid, *code = json.loads(self._control.recv(64))
        if code:
            self._running.pop(pid).ended.set_result(code[0])
        else:
            self._running[pid] = _Process(pid)
            self._started.put_nowait(self._running[pid])

    async def spawn(self) -> tuple[_Process, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an engine's process and the near end of its socket."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"start"], [theirs.fileno()])
        process = await self._started.get()
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 26)
        return process, reader, writer


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """Start the process that the engines are forked from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                env={**ENGINE_ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        made = Nursery(ours)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, made.heard)
        try:
            yield made
        finally:
            loop.remove_reader(ours)
            ours.close()
            await process.wait()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
