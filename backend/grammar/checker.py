"""Checking grammars in a process of its own: the library may not come back from one, or end the process it runs in.

Started as `python -m backend.grammar.checker`. It reads grammars, one JSON string a line, and answers each with a
line: `null`, or why the grammar cannot be enforced. References and rules that lead ever deeper overflow the library's
stack, so it gets a smaller one here than the engine has: what passes here does not overflow there.
"""

from __future__ import annotations

import asyncio
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

__all__ = ["KEPT_VERDICTS", "TIMEOUT_S", "GrammarChecker", "main"]

KEPT_VERDICTS: Final = 256
"""Grammars whose verdict is remembered: most callers send the same few again and again."""
TIMEOUT_S: Final = 10.0
STACK_BYTES: Final = 2 << 20
LINE_LIMIT: Final = 1 << 20


class GrammarChecker:
    """Hands grammars to a process that is started when the first one comes, and again whenever one has ended it."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, grammar: str) -> None:
        """Return when `grammar` can be enforced.

        Raises:
            GrammarError: it cannot, or finding out takes too long or too much.
        """
        key = hashlib.sha256(grammar.encode()).digest()
        if key not in self._verdicts:
            async with self._turn:
                if key not in self._verdicts:
                    self._verdicts[key] = await self._ask(grammar)
        verdict = self._verdicts[key]
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        if verdict is not None:
            raise GrammarError(verdict)

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _ask(self, grammar: str) -> str | None:
        """Return why a grammar cannot be enforced. Whoever stops waiting takes the process down with it."""
        complete = False
        try:
            async with asyncio.timeout(self._timeout_s):
                process = self._process = self._process or await _start()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
            complete = bool(answer)
            return json.loads(answer) if answer else _TOO_MUCH
        except ConnectionError:
            return _TOO_MUCH
        except TimeoutError:
            return f"compiling it takes longer than {self._timeout_s:g} seconds"
        finally:
            if not complete:
                await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


_TOO_MUCH: Final = "it is nested too deeply, or too large"


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
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


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    """Take lines in until the parent is gone, and end then, in the middle of a grammar too."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _serve(lines: queue.SimpleQueue[bytes]) -> None:
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
