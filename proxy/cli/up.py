"""`trimtab up`: the bundled worker, the proxy and its controller, with one command."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from proxy.cli.child import Child, ChildFailed
from proxy.cli.options import config_file_option, die, find_file, read_config, set_option, settings
from proxy.cli.sockets import BindError, address_of, bind
from proxy.cli.worker import DEMO_MODEL, require_model, require_worker
from proxy.config.load import Override
from proxy.config.model import Config
from proxy.state.location import kept_somewhere

__all__ = ["command"]

_PROGRESS = re.compile(r"^(?P<stage>[^:]{1,60}): +(?P<percent>\d{1,3})%$")
_WORKER_PATIENCE_S = 10.0
_LOOK_S = 0.05
_REFUSED = 2
"""The exit code of a worker that has said itself what is wrong with what it was asked for."""
_DEMO_SLO = {"tpot_ms": 150.0, "e2e_ms": 60_000.0}
_DEMO_DTYPE = ("--dtype", "float32")
"""The demo's weights have four bits each: rounding the arithmetic too changes what it says."""
_PLACEHOLDER = "http://127.0.0.1:1"
_CTL_DEFAULT = "http://127.0.0.1:8081"
"""Where `trimtab ctl` looks when it is not told."""


@click.command("up")
@config_file_option
@click.option(
    "--model", default=DEMO_MODEL, show_default=True, help="What the worker serves: a directory or a .gguf."
)
@click.option("--port", type=int, help="Port for clients.  [8080]")
@click.option("--admin-port", type=int, help="Port for the admin API and metrics.  [8081]")
@click.option("--worker-port", type=int, default=0, show_default=True, help="Port of the worker; 0 picks a free one.")
@click.option("--worker-arg", "worker_args", multiple=True, metavar="ARG", help="Passed to the worker. Repeatable.")
@set_option
def command(
    file: Path | None,
    model: str,
    port: int | None,
    admin_port: int | None,
    worker_port: int,
    worker_args: tuple[str, ...],
    sets: tuple[str, ...],
) -> None:
    """Start the demo: bundled worker, proxy and controller. Ctrl-C stops everything."""
    require_worker()
    require_model(model)
    overrides = settings(sets, (("listen.port", port, "--port"), ("admin.port", admin_port, "--admin-port")))
    config = read_config(find_file(file), _with_upstream(overrides, _PLACEHOLDER))
    try:
        data = bind(
            config.listen.host, config.listen.port, key="listen", flag="--port", backlog=config.listen.backlog
        )
        admin = bind(config.admin.host, config.admin.port, key="admin", flag="--admin-port")
    except BindError as error:
        die(f'{error}; with make: make run ARGS="--port 9080 --admin-port 9081"')
    from proxy.http.descriptors import needed, raise_limit
    from proxy.observe import logs
    from proxy.run import run_loop

    logs.setup(config.log)
    raise_limit(needed(config))
    arguments = [sys.executable, "-m", "backend", "--model", model, "--port", str(worker_port)]
    arguments += [*(_DEMO_DTYPE if model == DEMO_MODEL else ()), *worker_args]
    up = _Up(find_file(file), overrides, data, admin)
    raise SystemExit(run_loop(up.run(arguments)))


def _with_upstream(overrides: Sequence[Override], url: str) -> list[Override]:
    """Add the worker as the upstream, and an SLO for the demo unless one is set."""
    chosen = {override.path for override in overrides}
    slo = [
        Override(("slo", key), value, "trimtab up") for key, value in _DEMO_SLO.items() if ("slo", key) not in chosen
    ]
    window = Override(("setpoints", "window_ms", "initial"), 0, "trimtab up")
    upstreams = Override(("upstreams",), [{"url": url, "profile": "trimtab-worker"}], "trimtab up")
    return [*slo, window, upstreams, *overrides]


class _Up:
    """One run of the demo."""

    def __init__(
        self, file: Path | None, overrides: Sequence[Override], data: socket.socket, admin: socket.socket
    ) -> None:
        self._file = file
        self._overrides = overrides
        self._data = data
        self._admin = admin
        self._progress = _Progress()
        self._beside = _BesideProgress(self._progress)

    async def run(self, arguments: Sequence[str]) -> int:
        """Start the worker, put the proxy in front of it, wait for the end; return the exit code."""
        from proxy.run import ExitSignals

        for handler in logging.getLogger("trimtab").handlers:
            handler.addFilter(self._beside)
        signals = ExitSignals()
        signals.install()
        child = await Child.start(arguments, self._progress.line)
        try:
            return await self._supervise(child, signals)
        except ChildFailed as failure:
            self._progress.close()
            if failure.code != _REFUSED or not failure.lines:
                click.echo(f"trimtab: the worker ended with code {failure.code} before it was ready", err=True)
            return _exit_code(failure.code)
        finally:
            self._progress.close()
            await child.stop(0.0 if signals.insisted.is_set() else _WORKER_PATIENCE_S)

    async def _supervise(self, child: Child, signals: Any) -> int:
        from proxy.app import Proxy
        from proxy.run import wind_down

        listening = await _first(child.event("listening"), signals.asked.wait())
        if listening is None:
            return 0
        config = self._config(listening["url"])
        proxy = Proxy(config, reread=lambda: self._config(listening["url"]))
        try:
            await proxy.start(self._data, self._admin)
            ready = await _first(child.event("ready"), signals.asked.wait())
            if ready is None or not await _first(_seen_well(proxy), signals.asked.wait()):
                return 0
            self._progress.close()
            self._beside.loading = False
            self._announce(ready, config)
            code = await _first(child.wait(), signals.asked.wait())
            if code is not None:
                click.echo(f"trimtab: the worker ended with code {code}; stopping", err=True)
                return _exit_code(code)
            click.echo("stopping; Ctrl-C again stops at once", err=True)
            await wind_down(proxy, signals)
            return 0
        finally:
            await proxy.stop()

    def _config(self, url: str) -> Config:
        return kept_somewhere(read_config(self._file, _with_upstream(self._overrides, url)), os.environ, "up-")

    def _announce(self, ready: dict[str, Any], config: Config) -> None:
        proxy = f"{_scheme(config.listen.tls)}://{address_of(self._data)}"
        admin = f"{_scheme(config.admin.tls)}://{address_of(self._admin)}"
        ctl = f"{_own_name()} ctl" + ("" if admin == _CTL_DEFAULT else f" --url {admin}")
        body = {"model": ready["model"], "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        lines = (
            f"ready in {self._progress.elapsed_s:.1f} s: {ready['model']} on {ready.get('device', 'the worker')}",
            "",
            f"  OpenAI API   {proxy}/v1",
            f"  console      {admin}/console/",
            f"  admin API    {admin}/admin/v1/pools",
            f"  metrics      {admin}/metrics",
            f"  worker       {ready['url']} (direct)",
            "",
            "Try it:",
            f"  curl -s {proxy}/v1/completions -H 'Content-Type: application/json' \\",
            f"    -d '{json.dumps(body)}'",
            "",
            "Change its SLO while it runs, and see what the controller makes of it:",
            f"  {ctl} slo tpot_ms=75",
            f"  {ctl} decisions",
            "",
            "Ctrl-C stops everything.",
        )
        click.echo("\n".join(lines))
        sys.stdout.flush()


def _scheme(tls: object) -> str:
    return "http" if tls is None else "https"


def _own_name() -> str:
    """Return what a shell in this folder takes for this command: `trimtab`, or its path when it is not on PATH."""
    own = Path(sys.argv[0])
    if own.name != "trimtab" or shutil.which("trimtab") == str(own.absolute()):
        return "trimtab"
    here = Path.cwd()
    return str(own.relative_to(here) if own.is_absolute() and own.is_relative_to(here) else own)


def _exit_code(code: int) -> int:
    """Return what a shell would: 128 and the signal for a child that a signal ended; never 0."""
    return 128 - code if code < 0 else code or 1


async def _seen_well(proxy: Any) -> bool:
    """Wait until the proxy has seen the worker well, which it looks for several times a second."""
    for _ in range(int(_WORKER_PATIENCE_S / _LOOK_S)):
        if not proxy.unready():
            break
        await asyncio.sleep(_LOOK_S)
    return True


async def _first(work: Any, stop: Any) -> Any:
    """Return the result of `work`, or None when `stop` comes first."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Progress:
    """Shows what the worker is doing: one line that is rewritten on a terminal, whole lines elsewhere."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._open = False
        self._last = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def line(self, text: str) -> None:
        """Show one line of the worker's stderr."""
        for part in text.split("\r"):
            plain = part.replace("\x1b[K", "").strip()
            if not plain or plain == self._last:
                continue
            self._last = plain
            progress = _PROGRESS.match(plain)
            if progress and self._terminal:
                click.echo(f"\r\x1b[K{plain} ({self.elapsed_s:.0f} s)", nl=False, err=True)
                self._open = True
            else:
                self.close()
                click.echo(plain if progress else f"worker | {plain}", err=True)

    def close(self) -> None:
        """End a rewritten line."""
        if self._open:
            click.echo("", err=True)
            self._open = False


class _BesideProgress(logging.Filter):
    """Keeps log lines off a rewritten line; and while the model loads, that the worker is not well is no news."""

    def __init__(self, progress: _Progress) -> None:
        super().__init__()
        self._progress = progress
        self.loading = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `record` is shown, after the progress line, if one is open, has been ended."""
        if self.loading and record.name == "trimtab.proxy" and record.levelno < logging.ERROR:
            return False
        self._progress.close()
        return True
