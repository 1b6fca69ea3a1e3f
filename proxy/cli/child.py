"""The bundled worker as a child process that never outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.aside import Aside

__all__ = ["Child", "ChildFailed"]

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 20
_LINE_BYTES = 1 << 20
_LAST_WORDS_S = 1.0


class ChildFailed(Exception):
    """The child ended before it was ready. `code` is its exit code."""

    def __init__(self, code: int, lines: Sequence[str]) -> None:
        super().__init__(f"the worker ended with code {code}")
        self.code = code
        self.lines = tuple(lines)


class Child:
    """Runs a command in a session of its own and follows its two streams.

    stdout carries one JSON object a line, `{"event": ...}`; stderr is for people. The child gets SIGTERM when this
    process dies in any way (Linux), and its whole process group is gone when `stop` returns.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        on_line: Callable[[str], None],
    ) -> None:
        self._process = process
        self._on_line = on_line
        self._events: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        # A thread waits for the end: asyncio's own `wait` also waits for the pipes, which a grandchild may hold open.
        self._ended: asyncio.Task[int] = asyncio.create_task(Aside("waiting for a child", None).run(process.wait))
        self._readers = (
            asyncio.create_task(self._follow_stdout(stdout)),
            asyncio.create_task(self._follow_stderr(stderr)),
        )
        self._pipes: tuple[asyncio.BaseTransport, ...] = ()

    @classmethod
    async def start(
        cls, command: Sequence[str], on_line: Callable[[str], None], environ: Mapping[str, str] | None = None
    ) -> Child:
        """Start `command`. `on_line` is given each line of its stderr."""
        process = subprocess.Popen(  # noqa: ASYNC220 - forking takes a millisecond, and only once
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,  # a terminal's Ctrl-C is for us; we tell the child in order
            preexec_fn=_die_with_parent(),
        )
        (stdout, out_pipe), (stderr, err_pipe) = await _open(process.stdout), await _open(process.stderr)
        child = cls(process, stdout, stderr, on_line)
        child._pipes = (out_pipe, err_pipe)
        return child

    @property
    def pid(self) -> int:
        """The child's process id, which is also that of its group."""
        return self._process.pid

    async def event(self, name: str) -> dict[str, Any]:
        """Wait for an event on stdout. Raises ChildFailed when the child ends first."""
        waiting = self._events.setdefault(name, asyncio.get_running_loop().create_future())
        both: tuple[asyncio.Future[Any], asyncio.Future[Any]] = (waiting, self._ended)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise ChildFailed(await self.wait(), self._tail)

    async def wait(self) -> int:
        """Wait for the child's end and for the last of its output; return its exit code."""
        code = await asyncio.shield(self._ended)
        await asyncio.wait(self._readers, timeout=_LAST_WORDS_S)
        return code

    async def stop(self, patience_s: float) -> int:
        """Ask it to stop, insist after `patience_s`, and leave nothing of its group behind."""
        if not self._ended.done():
            self._signal(signal.SIGTERM, group=False)
            await asyncio.wait((self._ended,), timeout=patience_s)
        self._signal(signal.SIGKILL, group=True)
        code = await self.wait()
        for reader in self._readers:
            reader.cancel()
        for pipe in self._pipes:
            pipe.close()
        return code

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    async def _follow_stdout(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            try:
                event = json.loads(raw)
                name = event["event"]
            except (ValueError, TypeError, KeyError):
                self._on_line(raw.decode(errors="replace").rstrip())
                continue
            waiting = self._events.setdefault(name, asyncio.get_running_loop().create_future())
            if not waiting.done():
                waiting.set_result(event)

    async def _follow_stderr(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            self._tail.append(line)
            self._on_line(line)


async def _open(pipe: Any) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return a reader of one end of a pipe."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


def _die_with_parent() -> Callable[[], None] | None:
    """Return what makes the kernel send SIGTERM to the child when we are gone; None where it cannot."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # we died between fork and here
            os.kill(os.getpid(), signal.SIGTERM)

    return arm
