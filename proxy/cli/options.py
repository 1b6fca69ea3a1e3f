"""What several subcommands share: finding and reading the configuration, and failing with a fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import yaml

from proxy.config.errors import ConfigError
from proxy.config.load import Override, load
from proxy.config.model import Config

__all__ = ["config_file_option", "die", "find_file", "read_config", "set_option", "settings"]

_F = TypeVar("_F", bound=Callable[..., Any])
DEFAULT_FILE = "trimtab.yaml"

config_file_option = click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), envvar="TRIMTAB_CONFIG",
    help=f"Configuration file; {DEFAULT_FILE} in this directory when there is one.",
)  # fmt: skip
set_option = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE",
    help="Set any key, e.g. --set slo.ttft_ms=500 or --set pools.chat.depth=3. May be repeated.",
)  # fmt: skip


def die(message: object) -> NoReturn:
    """Say what is wrong on stderr and exit with 2."""
    for line in str(message).splitlines():
        click.echo(f"trimtab: {line}", err=True)
    sys.exit(2)


def find_file(file: Path | None) -> Path | None:
    """Return the file to read: the one given, else the default one if it is there."""
    if file is not None:
        return file
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def settings(sets: Iterable[str], flags: Iterable[tuple[str, Any, str]] = ()) -> list[Override]:
    """Turn --set and named flags into overrides. `flags` are (dotted key, value or None, flag)."""
    overrides = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            die(f"--set {text}: write it as KEY=VALUE, for example --set slo.ttft_ms=500")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = value
        overrides.append(Override(_path(key.strip()), parsed, f"--set {key.strip()}"))
    overrides += [Override(_path(key), value, flag) for key, value, flag in flags if value is not None]
    return overrides


def _path(key: str) -> tuple[str | int, ...]:
    """Read `pools.chat.upstreams[0].url`; a number in brackets or between dots is an index."""
    parts = key.replace("[", ".").replace("]", "").split(".")
    return tuple(
        int(part) if part.isdecimal() and index and parts[index - 1] != "pools" else part
        for index, part in enumerate(parts)
    )


def read_config(file: Path | None, overrides: Iterable[Override]) -> Config:
    """Read file, environment and overrides, or exit with 2 and what is wrong."""
    try:
        return load(file, environ=os.environ, overrides=overrides)
    except ConfigError as error:
        die(error)
