"""Virtual environments for what does not share the project's own: peers, and the clients people use.

Each has a folder under the cache. Nothing is installed twice: a marker holds the pins it was made from.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxy.processes import CACHE

__all__ = ["Environment", "InstallFailed", "install_all"]

_TELLING = ("Downloading", "Building wheel", "Installing collected", "ERROR")
"""How the lines of pip's output begin that tell whoever waits how far it is."""


class InstallFailed(RuntimeError):
    """pip ended with an error, or took longer than allowed."""


@dataclass(frozen=True)
class Environment:
    """One virtual environment: its name, and what is in it, with versions pinned."""

    name: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    """Installed without what they ask for: packages that are wanted for the data in them."""
    unwanted: tuple[str, ...] = ()
    """Removed again after the install: packages that another one pulls in and that do not import beside it."""
    within_s: float = 1800
    """An install that takes longer is given up."""
    sources: tuple[str, ...] = ()
    """Packages that have no wheel and may be built."""
    python: str = sys.executable
    """The interpreter it is made with."""
    compiled: bool = False
    """Whether pip makes its bytecode: worth it where a server is many processes, each of which would make it anew."""

    @property
    def home(self) -> Path:
        """Where it is."""
        return CACHE / "peers" / self.name

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.home / "bin"

    @property
    def installed(self) -> bool:
        """Whether it is there, made from these pins."""
        marker = self.home / ".ok"
        return marker.exists() and marker.read_text() == self._pins

    @property
    def _pins(self) -> str:
        return "\n".join((*self.requirements, *self.bare, *(["compiled"] if self.compiled else [])))

    def version(self, package: str = "") -> str:
        """The version of `package`, or of the first requirement, as pinned; "" where it is not among them."""
        found = (pin for pin in self.requirements if pin.startswith(package))
        return next(found, "").rpartition("==")[2]

    def install(self) -> None:
        """Make it, unless it is there. Raises InstallFailed."""
        if self.installed:
            return
        print(f"==> {self.name}: installing {' '.join(self.requirements)}", file=sys.stderr, flush=True)
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([self.python, "-m", "venv", str(self.home)], check=True)
        pip = [str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check"]
        options = ["--compile" if self.compiled else "--no-compile"]
        options += ["--progress-bar", "off", "--only-binary", ":all:"]
        if self.sources:
            options += ["--no-binary", ",".join(self.sources)]
        self._run([*pip, "install", *options, *self.requirements])
        if self.bare:
            self._run([*pip, "install", "--no-deps", *options, *self.bare])
        if self.unwanted:
            self._run([*pip, "uninstall", "-y", *self.unwanted])
        (self.home / ".ok").write_text(self._pins)

    def _run(self, argv: list[str]) -> None:
        """Run pip, pass on the lines that tell something; `timeout` of coreutils ends it where it takes too long."""
        limit = ["timeout", "--kill-after=10", f"{self.within_s:.0f}"]
        with subprocess.Popen([*limit, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.lstrip().startswith(_TELLING):
                    print(f"    {line.strip()[:110]}", file=sys.stderr, flush=True)
        if child.returncode:
            told = f"took longer than {self.within_s:.0f} s" if child.returncode == 124 else "failed"
            raise InstallFailed(f"{self.name}: {' '.join(argv[3:5])} {told}; what it said is above")


def install_all(environments: Iterable[Environment]) -> list[str]:
    """Install what is missing, one after the other; returns what went wrong, a line each."""
    failures = []
    for environment in environments:
        try:
            environment.install()
        except InstallFailed as error:
            print(f"    {error}", file=sys.stderr, flush=True)
            failures.append(str(error))
    return failures
