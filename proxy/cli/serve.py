"""`trimtab serve`: the proxy in front of inference servers that run already."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from proxy.cli.options import config_file_option, die, find_file, read_config, set_option, settings
from proxy.config.errors import ConfigError
from proxy.config.load import Override, load
from proxy.config.model import Config
from proxy.state.location import kept_somewhere

__all__ = ["command"]


@click.command("serve")
@config_file_option
@click.option("--upstream", "upstreams", multiple=True, metavar="URL", help="An inference server. May be repeated.")
@click.option("--host", help="Address for clients.  [127.0.0.1]")
@click.option("--port", type=int, help="Port for clients.  [8080]")
@click.option("--admin-port", type=int, help="Port for the admin API and metrics.  [8081]")
@click.option("--workers", type=int, help="Processes that serve clients.  [1]")
@click.option("--log-level", help="debug, info, warning or error.  [info]")
@set_option
def command(
    file: Path | None,
    upstreams: tuple[str, ...],
    host: str | None,
    port: int | None,
    admin_port: int | None,
    workers: int | None,
    log_level: str | None,
    sets: tuple[str, ...],
) -> None:
    """Run the proxy in front of your inference servers.

    Values come from the file, then TRIMTAB_* variables, then flags. SIGHUP reads them again, SIGTERM drains.
    """
    # Whoever asks for a reload while we start is answered once we have; by default the signal would end us.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    found = find_file(file)
    overrides = settings(
        sets,
        (
            ("upstreams", list(upstreams) or None, "--upstream"),
            ("listen.host", host, "--host"),
            ("listen.port", port, "--port"),
            ("admin.port", admin_port, "--admin-port"),
            ("workers", workers, "--workers"),
            ("log.level", log_level, "--log-level"),
        ),
    )
    config = read_config(found, overrides)
    raise SystemExit(run(config, partial(_reread, found, overrides)))


def _reread(file: Path | None, overrides: list[Override]) -> Config:
    return kept_somewhere(load(file, environ=os.environ, overrides=overrides), os.environ)


def run(config: Config, reread: Callable[[], Config]) -> int:
    """Take both ports, then serve until a signal; return the exit code. Exits with 2 when a port is taken."""
    from proxy.cli.sockets import BindError, address_of, bind, bind_shared
    from proxy.http.descriptors import needed, raise_limit
    from proxy.observe import logs

    logs.setup(config.log)
    raise_limit(needed(config))
    config = kept_somewhere(config, os.environ)
    if config.tracing.enabled:
        from proxy.observe.tracing import exporter_for

        try:
            exporter_for(config.tracing).shutdown()
        except ConfigError as error:
            die(error)
    try:
        data = bind_shared(
            config.listen.host,
            config.listen.port,
            config.workers,
            key="listen",
            flag="--port",
            backlog=config.listen.backlog,
        )
        admin = bind(config.admin.host, config.admin.port, key="admin", flag="--admin-port")
    except BindError as error:
        die(error)
    from proxy.run import run_loop, serve

    def started(_: object) -> None:
        pools = "; ".join(
            f"{pool.name} -> {', '.join(upstream.url for upstream in pool.upstreams)}" for pool in config.pools
        )
        many = "" if config.workers == 1 else f"  [{config.workers} workers]"
        scheme, admin_scheme = ("http" if part.tls is None else "https" for part in (config.listen, config.admin))
        click.echo(f"proxy   {scheme}://{address_of(data[0])}  ({pools}){many}", err=True)
        click.echo(
            f"admin   {admin_scheme}://{address_of(admin)}  (/console/, /admin/v1/pools, /metrics, /readyz)", err=True
        )

    if config.workers == 1:
        return run_loop(serve(config, data[0], admin, reread=reread, started=started))
    from proxy.workers.supervisor import supervise

    return run_loop(supervise(config, data, admin, reread=reread, started=started))
