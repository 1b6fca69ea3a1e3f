"""`trimtab simulate`: try laws and SLOs on a trace before they touch traffic."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command(
    "simulate",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Replay a trace, an access log or generated arrivals under one or more laws; see --help."""
    # The simulator brings its own parser, so that it can be used without a proxy.
    from controller.simulator.cli import main

    raise SystemExit(main(arguments))
