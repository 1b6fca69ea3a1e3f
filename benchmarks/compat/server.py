"""What is known of one server: how it starts, when it is ready, what Trimtab needs to be told, what to ask it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compat.environments import ENVIRONMENTS
from benchmarks.compat.exchange import Ask
from benchmarks.environments import Environment

__all__ = ["APPS", "ROOT", "Place", "Probe", "Server", "own"]

ROOT = Path(__file__).parent.parent.parent
APPS = Path(__file__).parent / "apps"


@dataclass(frozen=True)
class Place:
    """Where a server runs: its port, spare ports beside it, and a folder of its own."""

    port: int
    spare: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class Probe:
    """A client library's calls: the script, the model they name, and which of them this server has no use for."""

    script: str
    model: str
    without: frozenset[str] = frozenset()
    volatile: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Server:
    """One server to put Trimtab in front of."""

    name: str
    title: str
    command: Callable[[Place], list[str]]
    """Its command line, once what it reads is written into the folder of its place."""
    ready: str
    """A path that answers 200 once it serves."""
    environment: str | None = None
    """Where it is installed; None for the project's own."""
    pool: Mapping[str, Any] = field(default_factory=dict)
    """The pool's configuration, its upstream aside."""
    profile: str = "auto"
    asks: tuple[Ask, ...] = ()
    together: tuple[tuple[Ask, ...], ...] = ()
    """Groups that are sent at once and may be merged into one upstream call."""
    company: int = 0
    """So many of `asks` are sent at once as well, and compared byte for byte; 0 for none."""
    probes: tuple[Probe, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    boot_s: float = 60
    real: bool = True
    """Whether it is somebody else's software: a stand-in of ours only speaks the protocol."""
    package: str = ""
    """How the requirement begins that it is, where its environment is not its alone."""
    warm: Ask | None = None
    """Sent until it is answered with 200 before anything is compared."""

    @property
    def installed(self) -> bool:
        """Whether it can be started."""
        return self.environment is None or ENVIRONMENTS[self.environment].installed

    @property
    def version(self) -> str:
        """The version that runs."""
        if not self.real:
            return "-"
        return "this tree" if self.environment is None else ENVIRONMENTS[self.environment].version(self.package)

    def environ(self) -> dict[str, str]:
        """The process's environment."""
        if self.environment is None:
            return {**os.environ, "PYTHONPATH": str(ROOT), **self.env}
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        # Some start their own commands by name.
        clean["PATH"] = f"{own(self.environment).bin}{os.pathsep}{clean.get('PATH', os.defpath)}"
        return {**clean, "OMP_NUM_THREADS": "1", **self.env}


def own(name: str) -> Environment:
    """The environment of a server."""
    return ENVIRONMENTS[name]
