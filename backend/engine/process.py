"""The engine's process: a socket on one side, the core's loop on the other.

Started as `python -m backend.engine.process FD`, FD being one end of a socket pair. A thread reads the socket, so
that the end of the parent is noticed even in the middle of a step or while the model loads, and another one compiles
grammars; everything else happens in the main thread. While there is work the loop takes what has arrived without
waiting; without, it sleeps, until a frame or a compiled grammar wakes it.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import torch

from backend.engine import ipc
from backend.engine.core import EngineCore, EngineFault
from backend.engine.embeddings import EmbeddingQueue
from backend.engine.errors import EngineError
from backend.engine.ipc import Kind
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.request import Delta

__all__ = ["Build", "EngineLoop", "main"]

Build = Callable[[EngineOptions, Callable[[str, float], None]], tuple[EngineCore, EngineInfo]]

IDLE_CHECK_S = 1.0
"""After this long without work the books are checked once."""
EXIT_GRACE_S = 10.0
"""How long a step may still take once the parent is gone."""

logger = logging.getLogger(__name__)


class _ParentGone(Exception):
    """The other end of the socket is closed."""


class Channel:
    """Frames over a blocking socket; reading happens in a thread of its own."""

    def __init__(self, sock: socket.socket, on_end: Callable[[], None]) -> None:
        """Call `on_end` in the reading thread when the other end is gone."""
        self._socket = sock
        self._inbox: queue.SimpleQueue[ipc.Frame | None] = queue.SimpleQueue()
        self._on_end = on_end
        self._reader = threading.Thread(target=self._read, name="engine-inbox", daemon=True)
        self._reader.start()

    def send(self, frame: ipc.Frame) -> None:
        """Write a frame; blocks while the parent does not read, which is how it slows the engine down."""
        try:
            self._socket.sendall(ipc.encode(frame))
        except OSError as error:
            raise _ParentGone from error

    def receive(self, timeout: float | None = 0.0) -> ipc.Frame | None:
        """Return the next frame, or None when none came within `timeout` seconds (0: look, None: wait)."""
        try:
            frame = self._inbox.get(block=timeout != 0.0, timeout=timeout or None)
        except queue.Empty:
            return None
        if frame is None:
            raise _ParentGone
        return frame

    def wake(self) -> None:
        """Make `receive` return, with a frame that says nothing. May be called from any thread."""
        self._inbox.put((Kind.WAKE,))

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                while len(header := stream.read(ipc.HEADER.size)) == ipc.HEADER.size:
                    (size,) = ipc.HEADER.unpack(header)
                    body = stream.read(size)
                    if len(body) < size:
                        break
                    self._inbox.put(ipc.decode(body))
        except OSError:
            pass  # a reset connection is an end like any other
        finally:
            self._inbox.put(None)
            self._on_end()


class EngineLoop:
    """Feeds a core from a channel until told to close."""

    def __init__(self, channel: Channel, core: EngineCore) -> None:
        self._channel = channel
        self._core = core
        self._embeddings = EmbeddingQueue(core.runner, core.step_budget)
        self._closing = False

    def run(self) -> None:
        """Serve until CLOSE. Raises EngineFault, and IntegrityError when the books do not balance at rest."""
        checked = True
        while not self._closing:
            if self._core.has_work or self._embeddings:
                checked = False
                frame = self._channel.receive()
            else:
                frame = self._channel.receive(None if checked else IDLE_CHECK_S)
                if frame is None:
                    self._core.check_integrity()
                    checked = True
            while frame is not None and not self._closing:
                self._handle(frame)
                frame = self._channel.receive()
            self._step()
            self._embed()
        self._publish(self._core.fail_all("the engine is shutting down"))

    def _step(self) -> None:
        """Run a step. Where the device works by itself, what the step before gave is told to the parent meanwhile."""
        core = self._core
        core.launch()
        if core.overlap:
            self._publish(core.drain())
        core.collect()
        if not core.overlap or not core.has_work:
            self._publish(core.drain())

    def _handle(self, frame: ipc.Frame) -> None:
        kind = frame[0]
        if kind == Kind.GENERATE:
            try:
                self._core.add(frame[1], self._channel.wake)
            except EngineError as error:
                self._channel.send((Kind.REFUSED, frame[1].id, error))
        elif kind == Kind.ABORT:
            self._publish(self._core.abort(frame[1]))
        elif kind == Kind.EMBED:
            self._embeddings.add(*frame[1:])
        elif kind == Kind.DROP:
            self._embeddings.drop(frame[1])
        elif kind == Kind.CLOSE:
            self._closing = True

    def _publish(self, deltas: list[Delta]) -> None:
        self._channel.send((Kind.STEP, [ipc.pack_delta(delta) for delta in deltas], self._core.stats()))

    def _embed(self) -> None:
        finished = self._embeddings.step()
        if finished is not None:
            self._channel.send((Kind.EMBEDDED, finished.job, finished.vectors, finished.error))


def serve(channel: Channel) -> int:
    """Build the engine that the first frame asks for and run it; returns the exit code."""
    first = channel.receive(None)
    assert first is not None
    _, options, where = first
    try:
        module, _, function = where.partition(":")
        build: Build = getattr(importlib.import_module(module), function)
        core, info = build(options, lambda stage, fraction: channel.send((Kind.PROGRESS, stage, fraction)))
    except EngineError as error:
        channel.send((Kind.FAILED, str(error)))
        return 2
    except _ParentGone:
        raise
    except Exception as error:
        logger.exception("the engine could not be built")
        channel.send((Kind.FAILED, f"the engine could not start: {type(error).__name__}: {error}"))
        return 1
    gc.collect()
    gc.freeze()  # what was loaded stays; without this a full collection stops a step for tens of milliseconds
    channel.send((Kind.READY, replace(info, pid=os.getpid())))
    try:
        EngineLoop(channel, core).run()
    except EngineFault as error:
        channel.send((Kind.FAILED, str(error)))
        return 1
    except _ParentGone:
        raise
    except Exception as error:
        logger.exception("the engine cannot go on")
        channel.send((Kind.FAILED, f"the engine cannot go on: {type(error).__name__}: {error}"))
        return 1
    return 0


def _leave_soon() -> None:
    """End the process even if the main thread is stuck in a step."""
    timer = threading.Timer(EXIT_GRACE_S, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


def main() -> int:
    """Run the engine over the file descriptor named on the command line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    torch.set_num_interop_threads(1)  # once per process, before anything runs; the rest is the build's business
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the parent drains first, and its end is ours.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), _leave_soon)
    try:
        return serve(channel)
    except _ParentGone:
        return 0


if __name__ == "__main__":
    sys.exit(main())
