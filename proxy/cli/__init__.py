"""The `trimtab` command. Subcommands are imported when they run, so that every one of them starts at once."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import NamedTuple

import click

from proxy.compiled import CompiledUnavailable, activate

__all__ = ["main"]


class _Entry(NamedTuple):
    module: str
    help: str
    compiled: bool = False
    """Whether it runs what may be compiled, for long enough to matter."""


_COMMANDS = {
    "up": _Entry("proxy.cli.up", "Start the demo: bundled worker, proxy and controller.", True),
    "serve": _Entry("proxy.cli.serve", "Run the proxy in front of your inference servers.", True),
    "worker": _Entry("proxy.cli.worker", "Run the bundled inference server."),
    "ctl": _Entry("proxy.cli.ctl", "Look at and steer a running proxy."),
    "simulate": _Entry("proxy.cli.simulate", "Try laws and SLOs on a trace, in virtual time.", True),
    "compile": _Entry("proxy.cli.compile", "Turn the request path into machine code."),
    "config": _Entry("proxy.cli.config", "Check, show and describe the configuration."),
}


class _LazyGroup(click.Group):
    """Knows its subcommands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if entry.compiled:
            try:
                activate()
            except CompiledUnavailable as error:
                raise click.UsageError(str(error), ctx) from error
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which subcommands there are where an unknown one is asked for."""
        if not args[0].startswith("-") and args[0] not in _COMMANDS:
            near = get_close_matches(args[0], _COMMANDS, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            ctx.fail(f"No such command {args[0]!r}. {hint}There are {', '.join(_COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        # Not at the top: it would bring modules from source before a compiled build is looked for.
        from policies import __version__

        click.echo(f"trimtab, version {__version__}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
def main() -> None:
    """A reverse proxy in front of inference servers that batches, queues and sheds against a live latency SLO."""
