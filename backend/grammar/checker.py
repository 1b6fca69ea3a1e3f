"""Checking grammars in a process of its own: the library may not come back from one, or end the process it runs in.

Started as `python -m backend.grammar.checker`. It says by an empty line that it is ready, then reads grammars, one
JSON string a line, and answers each with a line: `null`, or why the grammar cannot be enforced. References and rules
that lead ever deeper overflow the library's stack, so it gets a smaller one here than the engine has: what passes
here does not overflow there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import sys
import threading
from collections import OrderedDict
from typing import Final

from backend.grammar import source
from backend.grammar.source import GrammarError

__all__ = ["KEPT_VERDICTS", "TIMEOUT_S", "CheckerBusy", "GrammarChecker", "main"]

KEPT_VERDICTS: Final = 256
"""Grammars whose verdict is remembered: most callers send the same few again and again."""
TIMEOUT_S: Final = 10.0
PATIENCE_S: Final = 0.1
"""So long a grammar may keep those behind it waiting."""
MAX_SLOW: Final = 2
"""So many grammars that take longer may be under way at once."""
_LOW_PRIORITY: Final = 10
STACK_BYTES: Final = 2 << 20
LINE_LIMIT: Final = 1 << 20


class CheckerBusy(Exception):
    """As many grammars as may take long are being checked; this one takes long, too, and may be sent again later."""


class _Question:
    """One grammar that is being checked, however many callers wait for its verdict."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[str | None]) -> None:
        self.task = task
        self.waiting = 0


class GrammarChecker:
    """Hands grammars to processes that are started when they are needed, and again whenever a grammar has ended one.

    Most grammars take milliseconds. They take turns at one process; one that takes longer than `patience_s` has that
    process for itself from then on, at a low priority, and the others go on at another. So who sends grammars that
    take long holds nobody else up for more than `patience_s` each, and few of them can be under way at once.
    """

    def __init__(
        self, *, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S, max_slow: int = MAX_SLOW
    ) -> None:
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._max_slow = max_slow
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._slow: set[asyncio.subprocess.Process] = set()
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._open: dict[bytes, _Question] = {}
        self._tasks: set[asyncio.Task[str | None]] = set()

    async def check(self, grammar: str) -> None:
        """Return when `grammar` can be enforced.

        Raises:
            GrammarError: it cannot, or finding out takes too long or too much.
            CheckerBusy: it takes long, and so do as many others as may.
        """
        key = hashlib.sha256(grammar.encode()).digest()
        if key not in self._verdicts:
            await self._wait_for(key, grammar)
        verdict = self._verdicts[key]
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        if verdict is not None:
            raise GrammarError(verdict)

    async def close(self) -> None:
        """End every process."""
        for task in self._tasks:
            if not task.cancelling():  # else it is ending its process already
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._turn:
            process, self._process = self._process, None
            if process is not None:
                await _end(process)

    async def _wait_for(self, key: bytes, grammar: str) -> None:
        """Have a grammar checked once for all who ask now; the last to stop waiting ends it."""
        question = self._open.get(key)
        if question is None:
            task = asyncio.create_task(self._ask(grammar))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            question = self._open[key] = _Question(task)
        question.waiting += 1
        try:
            self._verdicts[key] = await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if question.waiting == 0:
                question.task.cancel()
                if self._open.get(key) is question:
                    del self._open[key]

    async def _ask(self, grammar: str) -> str | None:
        """Return why a grammar cannot be enforced. Raises CheckerBusy."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        async with self._turn:
            process, self._process = self._process, None
            if process is None or process.returncode is not None:
                process = await _start()
            asked = asyncio.create_task(_exchange(process, grammar))
            try:
                done, _ = await asyncio.wait((asked,), timeout=min(self._patience_s, self._timeout_s))
            except asyncio.CancelledError:
                await _abandon(process, asked)
                raise
            if done:
                answer, survived = asked.result()
                if survived:
                    self._process = process
                else:
                    await _end(process)
                return answer
            if len(self._slow) >= self._max_slow:
                await _abandon(process, asked)
                raise CheckerBusy("Grammars that take long to check are being checked already.")
            self._slow.add(process)
        return await self._finish(process, asked, deadline)

    async def _finish(
        self, process: asyncio.subprocess.Process, asked: asyncio.Task[tuple[str | None, bool]], deadline: float
    ) -> str | None:
        """Wait for a verdict that takes long, from a process that nobody else waits for."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOW_PRIORITY)
        try:
            async with asyncio.timeout_at(deadline):
                answer, _ = await asked
            return answer
        except TimeoutError:
            return f"compiling it takes longer than {self._timeout_s:g} seconds"
        finally:
            self._slow.discard(process)
            await _abandon(process, asked)


async def _exchange(process: asyncio.subprocess.Process, grammar: str) -> tuple[str | None, bool]:
    """Return why a grammar cannot be enforced, and whether the process has survived it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(grammar).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except ConnectionError:
        line = b""
    return (json.loads(line), True) if line else (_TOO_MUCH, False)


async def _abandon(process: asyncio.subprocess.Process, asked: asyncio.Task[tuple[str | None, bool]]) -> None:
    """End a process, and whoever waits for its answer."""
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process and see it and its pipes off."""
    if process.returncode is None:
        process.kill()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    await process.stdout.read()
    await process.wait()


_TOO_MUCH: Final = "it is nested too deeply, or too large"


async def _start() -> asyncio.subprocess.Process:
    """Start a process and wait until it has the library, which takes longer than most grammars."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "backend.grammar.checker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_LIMIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
        start_new_session=True,  # Ctrl-C and a service manager's signals are the parent's business
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
    except BaseException:
        await _end(process)
        raise
    return process


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    """Take lines in until the parent is gone, and end then, in the middle of a grammar too."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _serve(lines: queue.SimpleQueue[bytes]) -> None:
    source.check(source.from_choices(["ready"]))
    sys.stdout.write("\n")
    sys.stdout.flush()
    while True:
        grammar: str = json.loads(lines.get())
        verdict: str | None = None
        try:
            source.check(grammar)
        except GrammarError as error:
            verdict = str(error)
        except RecursionError:
            verdict = _TOO_MUCH
        sys.stdout.write(json.dumps(verdict) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Answer until the standard input ends."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(lines,))
    worker.start()
    worker.join()


if __name__ == "__main__":
    main()
