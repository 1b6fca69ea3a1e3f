"""`make install-check`: what pyproject.toml promises resolves, installs and serves with a pip that nobody configured.

uv resolves every extra for every version and platform, whether or not that Python is here. pip resolves all extras
together under each Python that is. On the newest, a wheel of this tree is installed and asked. Little is fetched.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.install.plain import VERSIONS, CheckFailed, interpreters, run
from tests.install.resolving import constraints_are_made_by_the_tool, extras, resolutions, size_told_is_true
from tests.install.serving import answers_a_request, install, wheel

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2

Check = tuple[str, Callable[[], object]]


def perform(check: Check) -> bool:
    """Run a check and print what came of it; return whether it passed."""
    name, action = check
    began = time.monotonic()
    try:
        action()
    except (CheckFailed, OSError) as error:
        print(f"FAILED  {name}\n{error}", flush=True)
        return False
    print(f"ok      {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def environment(python: Path, folder: Path) -> Path:
    """Make a virtual environment with today's pip, whose dry run fetches no package; return its interpreter."""
    run([python, "-m", "venv", folder], ROOT)
    inside = folder / "bin" / "python"
    run([inside, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], ROOT)
    return inside


def pip_checks(found: dict[str, Path], folder: Path) -> list[Check]:
    """Return the checks by pip: all extras under each Python, an install on the newest."""
    newest = VERSIONS[-1] if VERSIONS[-1] in found else max(found, key=VERSIONS.index)
    pythons = {version: environment(python, folder / version) for version, python in found.items()}
    built = wheel(ROOT, pythons[newest], folder / "wheel")
    everything = f"{built}[{','.join(extras(ROOT))}]"

    def serves() -> None:
        install(ROOT, pythons[newest], built)
        answers_a_request(pythons[newest], folder)

    def resolves(version: str) -> Callable[[], object]:
        command = [
            pythons[version],
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "-c",
            "constraints.txt",
            everything,
        ]
        return lambda: run(command, ROOT)

    # The install changes its environment, so what pip resolves there comes first.
    checks: list[Check] = [(f"{version}, pip: all extras together", resolves(version)) for version in pythons]
    return [*checks, (f"{newest}, pip: the proxy alone is installed, serves and answers", serves)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; return 0 when every one passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", type=Path, required=True, help="the uv to resolve with")
    uv = parser.parse_args(arguments).uv.resolve()
    found = interpreters()
    for version in VERSIONS:
        if version not in found:
            print(f"SKIPPED {version}, pip: no such Python is here; uv resolves for it all the same", flush=True)
    if not found:
        print("FAILED  no Python that is supported is on PATH or in pyenv's folder", flush=True)
        return 1
    checks: list[Check] = [
        ("constraints.txt is what the tool makes", lambda: constraints_are_made_by_the_tool(ROOT, uv)),
        ("the size that is told of torch", lambda: size_told_is_true(ROOT, uv, VERSIONS[-1])),
        *resolutions(ROOT, uv),
    ]
    with tempfile.TemporaryDirectory(prefix="trimtab-install-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        passed = list(pool.map(perform, checks))
        by_pip = pip_checks(found, Path(folder))
        passed += pool.map(perform, by_pip[:-1])
        passed.append(perform(by_pip[-1]))
    print(f"{passed.count(True)} passed, {passed.count(False)} failed, {len(VERSIONS) - len(found)} skipped")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
