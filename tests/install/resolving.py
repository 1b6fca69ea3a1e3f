"""What can be asked of a package registry without fetching a package."""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.install.plain import VERSIONS, CheckFailed, run

LINUX = "x86_64-manylinux_2_31"
PLATFORMS = (LINUX, "aarch64-manylinux_2_31", "aarch64-apple-darwin")
MACOS = "14.0"
"""The oldest that torch's wheels are for; those of llguidance set the glibc above."""
TOLD = re.compile(r'^DEFAULT_BUILD = "about ([\d.]+) GB to fetch', re.MULTILINE)


def extras(root: Path) -> list[str]:
    """Return the names of all extras."""
    return list(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def constraints_are_made_by_the_tool(root: Path, uv: Path) -> None:
    """Make constraints.txt anew, as `make constraints` does, and compare."""
    line = re.search(r"^constraints:.*\n\t\$\(UV\) ((?:.*\\\n)*.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "constraints.txt"
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(root / name, folder)
        words = line[1].replace("\\\n", "").replace("$(ARGS)", "").replace('"make constraints"', "make\0constraints")
        run([uv, *(word.replace("\0", " ") for word in words.split())], made.parent)
        differing = set(made.read_text().splitlines()) ^ set((root / "constraints.txt").read_text().splitlines())
    if differing:
        raise CheckFailed(f"constraints.txt is not what `make constraints` makes: {', '.join(sorted(differing))}")


def resolutions(root: Path, uv: Path) -> list[tuple[str, Callable[[], object]]]:
    """Return a check for each extra, none and all, under each version, and for all on the other platforms."""
    names = extras(root)
    wanted = [(version, LINUX, [name]) for version in VERSIONS for name in names]
    wanted += [(version, LINUX, []) for version in VERSIONS]
    wanted += [(version, platform, names) for version in VERSIONS for platform in PLATFORMS]
    return [
        (f"{version} {platform}: {', '.join(chosen) or 'no extra'}", _resolving(root, uv, version, platform, chosen))
        for version, platform, chosen in wanted
    ]


def _resolving(root: Path, uv: Path, version: str, platform: str, chosen: list[str]) -> Callable[[], object]:
    # Wheels only: what would have to be built from source needs tools that nobody was told about.
    command = [uv, "pip", "compile", "--quiet", "--python-version", version, "--python-platform", platform]
    command += ["--only-binary", ":all:", "-c", "constraints.txt", "pyproject.toml"]
    command += [word for name in chosen for word in ("--extra", name)]
    return lambda: run(command, root, MACOSX_DEPLOYMENT_TARGET=MACOS)


def size_told_is_true(root: Path, uv: Path, version: str) -> None:
    """Compare what `make` says that the registry's torch for Linux takes with the sizes of its wheels."""
    told = TOLD.search((root / "deploy" / "torch_build.py").read_text())
    assert told is not None
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        (Path(folder) / "torch.in").write_text("torch\n")
        command = [uv, "pip", "compile", "--quiet", "--python-version", version, "--python-platform", LINUX]
        run([*command, "-c", root / "constraints.txt", f"{folder}/torch.in", "-o", lock], root)
        packages = tomllib.loads(lock.read_text())["packages"]
    total = sum(_size(package.get("wheels", ()), version) for package in packages) / 1e9
    if not 0.85 * total <= float(told[1]) <= 1.15 * total:
        raise CheckFailed(f"deploy/torch_build.py tells of {told[1]} GB for torch, its wheels are {total:.2f} GB")


def _size(wheels: list[dict[str, object]], version: str) -> int:
    tag = "cp" + version.replace(".", "")
    fitting = re.compile(rf"-(?:py3-none-any|(?:{tag}-{tag}|py3-none|cp3\d+-abi3)-manylinux\S*x86_64\S*)\.whl$")
    return max((int(str(one["size"])) for one in wheels if fitting.search(str(one["url"]))), default=0)
