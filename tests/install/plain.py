"""Interpreters of this machine, and package tools as they are on a machine where nobody configured anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
"""What pyproject.toml promises."""
KEPT = ("PIP_CERT", "PIP_CACHE_DIR", "PIP_NO_CACHE_DIR", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT")
"""How the registry is reached may stay as it is; where packages come from, and which, may not."""


class CheckFailed(Exception):
    """What was promised does not hold; the text says which and why."""


def plain(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment with no configuration of pip or uv in it but for how the network is reached."""
    given = {
        name: value
        for name, value in environ.items()
        if name in KEPT or not name.startswith(("PIP_", "UV_", "PYTHON", "TRIMTAB_"))
    }
    given |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "UV_NO_CONFIG": "1",
    }
    if "PIP_CERT" in given:
        given.setdefault("SSL_CERT_FILE", given["PIP_CERT"])
    return given


def run(command: Sequence[str | Path], cwd: Path, **environ: str) -> str:
    """Run a command in the plain environment and return what it printed; raise CheckFailed with its last lines."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=plain() | environ, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise CheckFailed(f"{' '.join(words)}\nended with {done.returncode}:\n{said}")
    return done.stdout


def interpreters(versions: Sequence[str] = VERSIONS) -> dict[str, Path]:
    """Return an interpreter of each version that this machine has, from PATH or from pyenv's folder."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in versions:
        named = shutil.which(f"python{version}")
        kept = sorted(root.glob(f"{version}.*/bin/python{version}")) if root.is_dir() else []
        for candidate in [*([Path(named)] if named else []), *reversed(kept)]:
            if _is(candidate, version):
                found[version] = candidate
                break
    return found


def _is(candidate: Path, version: str) -> bool:
    """Tell whether it runs and is what its name says; a version manager's shim may do neither."""
    text = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([candidate, "-c", text], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version
