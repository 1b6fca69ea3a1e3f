"""`trimtab compile`: the request path as machine code."""

from __future__ import annotations

import os
import time

import click

from proxy.cli.options import die
from proxy.compiled.build import build
from proxy.compiled.store import CompiledUnavailable, build_folder, extension_files

__all__ = ["command"]


@click.command("compile")
@click.option("--jobs", type=click.IntRange(1, 64), help="C compilers at a time.  [as many as processors]")
@click.option("--check", is_flag=True, help="Only say whether this source is compiled; exit with 1 where it is not.")
@click.option("--if-possible", is_flag=True, help="Where it cannot be compiled, say why and exit with 0.")
def command(jobs: int | None, check: bool, if_possible: bool) -> None:
    """Compile what a request passes through (mypyc, a minute or two), for less than half the CPU a request.

    The result belongs to this environment and to exactly this source: after an edit or an upgrade the proxy runs from
    source until it is compiled again. Needs a C compiler, Python's headers and the extra `compile`.
    """
    there = bool(extension_files(build_folder()))
    if check:
        click.echo("compiled" if there else "not compiled: the proxy runs from source")
        raise SystemExit(0 if there else 1)
    if there:
        click.echo(f"compiled already: {build_folder()}")
        return
    began = time.monotonic()
    try:
        folder = build(jobs or os.cpu_count() or 1)
    except CompiledUnavailable as error:
        if not if_possible:
            die(error)
        click.echo(f"not compiled, the proxy runs from source, at nearly twice the CPU a request: {error}")
        return
    click.echo(f"compiled in {time.monotonic() - began:.0f} s: {folder}")
