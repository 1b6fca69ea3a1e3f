"""The API process's end of the engine: requests go out, deltas come back, and every request ends.

The engine runs in a process of its own, so that a step of a second never holds up the event loop. It is started
with one end of a socket pair and dies when the other end closes; its death, in turn, fails every open request.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Literal

from backend.engine import ipc
from backend.engine.errors import EngineDied, EngineError, EngineOverloaded, RequestRefused
from backend.engine.ipc import Kind
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.request import Delta, GenerationRequest
from backend.engine.stats import EngineStats

__all__ = ["DEFAULT_BUILD", "ENGINE_ENVIRONMENT", "EngineClient", "Pooling", "Progress"]

Pooling = Literal["mean", "last"]
Progress = Callable[[str, float], None]
"""Called with what is being done and how far it is, 0 to 1."""

DEFAULT_BUILD = "backend.engine.build:build_core"
"""Where the engine process finds the function that loads a model and makes an EngineCore of it."""

ENGINE_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
"""Set for the engine process unless set already: malloc and torch ask for huge pages, where the system lends them on
request, because every decode step on a CPU reads all weights once."""

_DRAIN_ABOVE = 1 << 20

STALL_S = 60.0
"""Work without a sign of life for this long means that a step hangs."""
RED_S = 30.0
"""How long a report of failing steps keeps health red; without traffic nothing else could turn it green again."""


class EngineClient:
    """A running engine. Make one with `start`, end it with `close`.

    At most `max_waiting + max_num_seqs` requests are open at once, and none yields more deltas than its own
    token limit allows: that bounds what the queues between the two processes can hold.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        info: EngineInfo,
        max_open: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._process = process
        self._reader = reader
        self._writer = writer
        self._max_open = max_open
        self._streams: dict[str, _Stream] = {}
        self._wire_ids: dict[str, str] = {}
        self._embeddings: dict[int, asyncio.Future[list[list[float]]]] = {}
        self._jobs = 0
        self._sent = 0
        self._stats = EngineStats(free_blocks=info.num_blocks, total_blocks=info.num_blocks)
        self._death: EngineDied | None = None
        self._clock = clock
        self._last_sign = clock()
        self._red_until = -math.inf
        self._closing = False
        self._closed = asyncio.Event()
        self._receiver = asyncio.create_task(self._receive(), name="engine-receiver")

    @classmethod
    async def start(
        cls,
        options: EngineOptions,
        *,
        on_progress: Progress | None = None,
        build: str = DEFAULT_BUILD,
    ) -> EngineClient:
        """Start an engine process, load the model, and return when it is ready to generate.

        `build` is "module:function", called there as `function(options, progress) -> (EngineCore, EngineInfo)`.
        Raises EngineError with one line that says why the engine did not come up.
        """
        process, reader, writer = await _spawn()
        try:
            writer.write(ipc.encode((Kind.START, options, build)))
            info = await _await_ready(process, reader, on_progress)
        except BaseException:
            writer.close()
            await _reap(process, grace_s=0.0)
            raise
        return cls(process, reader, writer, info, options.max_waiting + options.max_num_seqs)

    @property
    def healthy(self) -> bool:
        """Whether the engine is alive and makes progress: no hanging step, no recent report of failing ones."""
        now = self._clock()
        hangs = bool(self._streams) and now - self._last_sign > STALL_S
        return self._death is None and not self._closing and not hangs and now >= self._red_until

    @property
    def death(self) -> str | None:
        """Why the engine is gone, or None while it lives."""
        return str(self._death) if self._death else None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Submit `request` and yield what it produces; closing the iterator aborts it.

        Each of the `request.n` choices ends with a delta that carries a finish_reason; the last delta of all
        carries `usage`. Raises RequestRefused when it can never be served, EngineOverloaded when too many are
        open, EngineDied when the engine is gone or goes meanwhile.
        """
        stream = self._open_stream(request)
        try:
            if self._writer.transport.get_write_buffer_size() > _DRAIN_ABOVE:
                await self._writer.drain()
            while not stream.ended:
                for delta in await stream.take():
                    yield delta
        finally:
            del self._streams[stream.wire_id]
            del self._wire_ids[request.id]
            if not stream.over:
                self._send((Kind.ABORT, stream.wire_id))

    async def abort(self, request_id: str) -> None:
        """End a request early, in whatever state it is; its iterator ends with finish_reason "abort"."""
        if request_id in self._wire_ids:
            self._send((Kind.ABORT, self._wire_ids[request_id]))

    async def stats(self) -> EngineStats:
        """Return the engine's account as of its last step, plus what is still on the way to it. Never blocks."""
        stats = self._stats
        return replace(
            stats,
            waiting=stats.waiting + max(0, self._sent - stats.requests_received),
            healthy=self.healthy,
        )

    async def embed(self, token_ids: list[list[int]], pooling: Pooling) -> list[list[float]]:
        """Return one L2-normalised vector per input. Raises EngineError when the model cannot, or EngineDied."""
        if self._death is not None:
            raise self._death
        self._jobs += 1
        job = self._jobs
        future: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        self._embeddings[job] = future
        try:
            self._send((Kind.EMBED, job, token_ids, pooling))
            return await future
        except asyncio.CancelledError:
            self._send((Kind.DROP, job))
            raise
        finally:
            self._embeddings.pop(job, None)

    async def wait_closed(self) -> None:
        """Return when the engine process is gone, for whatever reason."""
        await self._closed.wait()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop the engine: politely for `grace_s` seconds, then by force. Open requests fail. Idempotent."""
        self._closing = True
        self._send((Kind.CLOSE,))
        await _reap(self._process, grace_s)
        await self._closed.wait()

    def _open_stream(self, request: GenerationRequest) -> _Stream:
        """Submit `request` under an id that was never used before.

        Deltas of an abandoned request may still be on their way when its id is used again.
        """
        if self._death is not None:
            raise self._death
        if self._closing:
            raise EngineDied("the engine is shutting down")
        if request.id in self._wire_ids:
            raise RequestRefused(f"a request with the id {request.id!r} is already running")
        if len(self._streams) >= self._max_open:
            raise EngineOverloaded(f"the engine already has {self._max_open} requests")
        self._sent += 1
        wire_id = f"{request.id}#{self._sent}"
        self._wire_ids[request.id] = wire_id
        if not self._streams:
            self._last_sign = self._clock()
        stream = self._streams[wire_id] = _Stream(request.id, wire_id, request.n)
        self._send((Kind.GENERATE, replace(request, id=wire_id)))
        return stream

    def _send(self, frame: ipc.Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(ipc.encode(frame))

    async def _receive(self) -> None:
        reason = "the engine process ended"
        try:
            while True:
                frame = await _read_frame(self._reader)
                if frame[0] == Kind.FAILED:
                    reason = frame[1]
                else:
                    self._dispatch(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other end is gone: what that means follows
        except Exception as error:
            reason = f"an unreadable frame came from the engine: {error}"
        finally:
            self._writer.close()
            self._fail_all(EngineDied("the engine was shut down" if self._closing else reason))
        code = await _reap(self._process, grace_s=5.0)
        if not self._closing and reason == "the engine process ended":
            self._death = EngineDied(f"the engine process ended unexpectedly ({_exit_text(code)})")
        self._closed.set()

    def _dispatch(self, frame: ipc.Frame) -> None:
        kind = frame[0]
        self._last_sign = self._clock()
        if kind == Kind.STEP:
            self._stats = frame[2]
            self._red_until = -math.inf if self._stats.healthy else self._last_sign + RED_S
            for packed in frame[1]:
                stream = self._streams.get(packed[0])
                if stream is not None:  # else its iterator was closed while the delta was on its way
                    stream.put(ipc.unpack_delta((stream.request_id, *packed[1:])))
        elif kind == Kind.REFUSED:
            stream = self._streams.get(frame[1])
            if stream is not None:
                stream.fail(frame[2])
        elif kind == Kind.EMBEDDED:
            future = self._embeddings.get(frame[1])
            if future is not None and not future.done():
                if frame[3] is None:
                    future.set_result(frame[2])
                else:
                    future.set_exception(EngineError(frame[3]))

    def _fail_all(self, death: EngineDied) -> None:
        self._death = death
        for stream in self._streams.values():
            stream.fail(death)
        for future in self._embeddings.values():
            if not future.done():
                future.set_exception(death)


class _Stream:
    """What came for one request and has not been taken yet."""

    __slots__ = ("_error", "_pending", "_unfinished", "_waiter", "request_id", "wire_id")

    def __init__(self, request_id: str, wire_id: str, choices: int) -> None:
        self.request_id = request_id
        self.wire_id = wire_id
        self._pending: list[Delta] = []
        self._unfinished = choices
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come: every choice finished, or the request failed."""
        return self._unfinished <= 0 or self._error is not None

    @property
    def ended(self) -> bool:
        """Whether everything that came was taken and nothing more will come."""
        return self._unfinished <= 0 and not self._pending

    def put(self, delta: Delta) -> None:
        self._pending.append(delta)
        if delta.finish_reason is not None:
            self._unfinished -= 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        if not self.over:
            self._error = error
            self._wake()

    async def take(self) -> list[Delta]:
        """Return what has come, at least one delta. Raises what the request failed with once all is taken."""
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, []
        return pending

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _spawn() -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a fresh interpreter (torch does not survive a fork) that holds the far end of a socket pair."""
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the module path is this process's own, and not the directory it happens to be started in
            "-m",
            "backend.engine.process",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={
                **ENGINE_ENVIRONMENT,
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            },
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 26)
    return process, reader, writer


async def _read_frame(reader: asyncio.StreamReader) -> ipc.Frame:
    (size,) = ipc.HEADER.unpack(await reader.readexactly(ipc.HEADER.size))
    return ipc.decode(await reader.readexactly(size))


async def _await_ready(
    process: asyncio.subprocess.Process, reader: asyncio.StreamReader, on_progress: Progress | None
) -> EngineInfo:
    while True:
        try:
            frame = await _read_frame(reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await _reap(process, grace_s=5.0)
            raise EngineDied(f"the engine process ended while it was starting ({_exit_text(code)})") from error
        if frame[0] == Kind.READY:
            info: EngineInfo = frame[1]
            return info
        if frame[0] == Kind.FAILED:
            raise EngineError(frame[1])
        if frame[0] == Kind.PROGRESS and on_progress is not None:
            on_progress(frame[1], frame[2])


async def _reap(process: asyncio.subprocess.Process, grace_s: float) -> int:
    """Wait up to `grace_s` for the process to end by itself, then kill it. Returns its exit code."""
    try:
        async with asyncio.timeout(grace_s):
            return await process.wait()
    except TimeoutError:
        if process.returncode is None:
            process.kill()
    return await process.wait()


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
