"""`trimtab config`: is it right, what is in force, and what could be said."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.core import ParameterSource

from proxy.cli.options import config_file_option, die, find_file, read_config, set_option, settings
from proxy.config.remarks import remarks
from proxy.config.show import as_data, as_yaml, json_schema

__all__ = ["command"]

_SHORTEST_KEY = 16


@click.group("config")
def command() -> None:
    """Check, show and describe the configuration."""


_file_argument = click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path))


def _named(path: Path | None, file: Path | None) -> Path | None:
    """Return the file to read, which may be given as an argument or by -c."""
    if path is not None and file is not None and path != file and not _from_environment():
        die(f"which file? {path} is given, and {file} by -c")
    return find_file(path or file)


def _from_environment() -> bool:
    source = click.get_current_context().get_parameter_source("file")
    return source is ParameterSource.ENVIRONMENT


@command.command()
@_file_argument
@config_file_option
@set_option
def check(path: Path | None, file: Path | None, sets: tuple[str, ...]) -> None:
    """Check the configuration; exit code 2 and one line for each problem."""
    found = _named(path, file)
    config = read_config(found, settings(sets))
    names = ", ".join(pool.name for pool in config.pools)
    click.echo(f"{found or 'the environment'}: ok; pools: {names}")
    for pool in config.pools:
        for remark in remarks(pool):
            click.echo(f"  pool {pool.name}: {remark}")


@command.command()
@_file_argument
@config_file_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
def show(path: Path | None, file: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Show every value in force, defaults included, secrets masked."""
    config = read_config(_named(path, file), settings(sets))
    click.echo(json.dumps(as_data(config), indent=2) if as_json else as_yaml(config), nl=as_json)


@command.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))


@command.command("hash-key")
def hash_key() -> None:
    """Read an API key from stdin and print its hash, for `keys` in the configuration.

    The key is not shown, and nothing but the hash is ever needed: head -c 32 /dev/urandom | base64 makes a good one.
    """
    import sys

    from proxy.access.keys import hash_key as hash_of

    by_hand = sys.stdin.isatty()
    key = (click.prompt("API key", hide_input=True, err=True) if by_hand else sys.stdin.readline()).strip()
    if len(key) < _SHORTEST_KEY:
        die(f"a key needs at least {_SHORTEST_KEY} characters, or it can be guessed from its hash")
    if not key.isascii() or not key.isprintable() or " " in key:
        die("a key is sent in a header field: printable ASCII characters, without spaces")
    click.echo(hash_of(key))
