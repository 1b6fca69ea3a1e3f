"""From listening to the last answer: bind, load, announce, serve, drain, stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TextIO

from aiohttp import web

from backend.api.intake import BodyLimits
from backend.api.metrics import Metrics
from backend.api.service import Limits, Service
from backend.arguments import Arguments
from backend.browsers import Browsers
from backend.engine.client import EngineClient
from backend.gpu import Gpu
from backend.grammar.checker import GrammarChecker
from backend.listener import Patience, WorkerRunner, connections_that_fit
from backend.loading import load_served_model
from backend.server import Phase, WorkerState, build_app

__all__ = ["ProgressLine", "StartError", "announce", "run_worker"]

logger = logging.getLogger("trimtab.worker")

SWITCH_S: Final = 0.001
"""How long a thread that reads a body may go on while the event loop waits for the interpreter."""
CUT_AFTER_S: Final = 2.0
"""How long answers may take once the engine is closed: each has only its error left to say."""


class StartError(Exception):
    """The worker cannot start; the message is one line that says what to change."""


class ProgressLine:
    """Shows loading progress: one line rewritten on a terminal, one line per tenth elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrite = stream.isatty()
        self._shown: tuple[str, int] | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        """Show that `stage` is at `fraction` (0 to 1)."""
        percent = int(100 * min(1.0, max(0.0, fraction)))
        mark = (stage, percent if self._rewrite else percent // 10)
        if mark == self._shown:
            return
        self._shown = mark
        text = f"{stage}: {percent:3d}%"
        self._stream.write(f"\r\x1b[K{text}" if self._rewrite else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End a rewritten line."""
        if self._rewrite and self._shown is not None:
            self._stream.write("\n")
            self._stream.flush()


def announce(event: str, stream: TextIO | None = None, **values: Any) -> None:
    """Print one machine-readable line (JSON) on stdout: `listening`, then `ready`."""
    print(json.dumps({"event": event, **values}), file=stream or sys.stdout, flush=True)


class _Signals:
    """The first SIGTERM or SIGINT asks for a drain, the second for haste."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.arrived)

    def arrived(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def _bind(runner: web.AppRunner, host: str, port: int) -> web.TCPSite:
    """Start listening.

    Raises:
        StartError: the address cannot be had.
    """
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is already in use: stop what holds it, or choose another with --port (0: any)"
            ) from error
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return site


async def _load(
    arguments: Arguments, executor: ThreadPoolExecutor, large: ThreadPoolExecutor, grammars: GrammarChecker
) -> tuple[EngineClient, Service]:
    """Start the engine and make the service over it; closes the engine again if that fails."""
    progress = ProgressLine(sys.stderr)
    try:
        engine = await EngineClient.start(arguments.engine, on_progress=progress)
    finally:
        progress.close()
    try:
        loop = asyncio.get_running_loop()
        model = await loop.run_in_executor(
            executor,
            partial(
                load_served_model,
                arguments.engine.model,
                engine.info,
                names=arguments.names,
                pooling=arguments.pooling,
                chat_template=arguments.chat_template,
            ),
        )
        limits = Limits(
            max_n=min(arguments.max_n, engine.info.max_num_seqs),
            max_sequences=arguments.engine.max_num_seqs + arguments.engine.max_waiting,
            write_stall_s=arguments.write_stall_s,
            bodies=BodyLimits(
                timeout_s=arguments.body_timeout_s,
                min_rate=arguments.min_rate_bytes,
                max_held_bytes=max(arguments.max_held_bytes, 2 * arguments.max_body_bytes),
            ),
        )
        service = Service(
            engine,
            model,
            limits=limits,
            metrics=Metrics(
                model.names[0],
                block_size=engine.info.block_size,
                num_blocks=engine.info.num_blocks,
                gpu=Gpu.find(engine.info.gpu),
            ),
            executor=executor,
            large=large,
            check_grammar=grammars.check,
            clock=time.monotonic,
            wall=time.time,
        )
    except BaseException:
        await engine.close()
        raise
    return engine, service


async def _first(*waits: Any, timeout_s: float | None = None) -> None:
    """Return when the first of some awaitables is done, or after `timeout_s`; cancel the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(state: WorkerState, site: web.TCPSite, signals: _Signals, grace_s: float) -> None:
    """Accept nothing new and let open requests finish, up to the grace or a second signal."""
    state.phase = Phase.DRAINING
    await site.stop()
    logger.info("draining: open requests have %g s", grace_s)
    await _first(state.wait_idle(), signals.hurry.wait(), timeout_s=grace_s)


async def run_worker(arguments: Arguments) -> int:
    """Run the worker until a signal or the engine's death; return the exit code.

    Raises:
        StartError, EngineError, ModelError: it could not start (one line).
    """
    signals = _Signals()
    signals.install(asyncio.get_running_loop())
    state = WorkerState()
    browsers = Browsers.of(arguments.host, arguments.api_key, arguments.cors_origins, arguments.allowed_hosts)
    app = build_app(state, max_body_bytes=arguments.max_body_bytes, api_key=arguments.api_key, browsers=browsers)
    patience = Patience(
        max_connections=connections_that_fit(arguments.max_connections),
        head_s=arguments.head_timeout_s,
        idle_s=arguments.keepalive_timeout_s,
        answer_s=arguments.write_stall_s,
        min_rate=arguments.min_rate_bytes,
    )
    runner = WorkerRunner(app, patience, shutdown_timeout=CUT_AFTER_S)
    await runner.setup()
    grammars = GrammarChecker()
    sys.setswitchinterval(SWITCH_S)
    with ThreadPoolExecutor(2, "read") as executor, ThreadPoolExecutor(1, "read-large") as large:
        try:
            site = await _bind(runner, arguments.host, arguments.port)
            host, port = runner.addresses[0][:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            announce("listening", url=url, host=host, port=port, pid=os.getpid())
            loading = asyncio.create_task(_load(arguments, executor, large, grammars))
            await _first(asyncio.shield(loading), signals.stop.wait())
            if not loading.done():
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
                return 0
            engine, state.service = loading.result()
            gc.collect()
            gc.freeze()  # what is there now stays: looking through it again would hold up the loop
            return await _serve(arguments, state, site, engine, signals, lambda: _announce_ready(url, state, engine))
        finally:
            await runner.cleanup()
            await grammars.close()


def _announce_ready(url: str, state: WorkerState, engine: EngineClient) -> None:
    assert state.service is not None
    model, info = state.service.model, engine.info
    announce(
        "ready",
        url=url,
        model=model.names[0],
        max_model_len=model.max_model_len,
        kv_blocks=info.num_blocks,
        block_size=info.block_size,
        device=info.device,
        dtype=info.dtype,
        load_s=round(info.load_s, 3),
        pid=os.getpid(),
        engine_pid=info.pid,
    )


async def _serve(
    arguments: Arguments,
    state: WorkerState,
    site: web.TCPSite,
    engine: EngineClient,
    signals: _Signals,
    ready: Callable[[], None],
) -> int:
    """Serve until told to stop (0) or until the engine is gone (1)."""
    try:
        state.phase = Phase.READY
        ready()
        await _first(signals.stop.wait(), engine.wait_closed())
        if engine.death is not None:
            logger.error("%s; the worker ends", engine.death)
            return 1
        await _drain(state, site, signals, arguments.grace_s)
        return 0
    finally:
        state.phase = Phase.DRAINING
        await engine.close()
        await _first(state.wait_idle(), timeout_s=CUT_AFTER_S)
