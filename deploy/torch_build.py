"""Chooses the build of torch that `make` installs, and says how large it is before anything is fetched.

The registry's torch for Linux brings CUDA along: gigabytes that a machine without an NVIDIA driver has no use for.
The framework publishes a CPU build on an index of its own. uv knows that index (`--torch-backend cpu`); where it
cannot be reached, pip takes the registry's build.

`choose` exits with 0 where `fetch` has something to do; whatever is not fetched here is left to pip. `TORCH_INDEX`,
the address or folder of a package index, takes torch from there; `TORCH_INDEX=none` leaves it to pip. Where the
user's own pip configuration says where packages come from, pip is not overruled either.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_BUILD = "about 190 MB"
DEFAULT_BUILD = "about 2.8 GB to fetch, 5 GB on disk"
MAC_BUILD = "about 110 MB"
SOURCES = ("index-url", "extra-index-url", "find-links", "no-index", "constraint")
"""What in pip's configuration says where packages come from, or which."""
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
PROBE_S = 20.0
"""Longest wait for the framework's index; each connection gets a quarter of it."""
WHY = "Another build: TORCH_INDEX=ADDRESS make ..., see docs/operations.md"


def say(text: str) -> None:
    """Print a line about what is to come, in the style of the Makefile."""
    print(f"==> torch: {text}", flush=True)


def installed() -> bool:
    """Tell whether this environment has a torch; pip decides then whether it will do."""
    try:
        version("torch")
    except PackageNotFoundError:
        return False
    return True


def has_driver(files: Sequence[Path] = DRIVER_FILES) -> bool:
    """Tell whether an NVIDIA driver is on this machine."""
    return shutil.which("nvidia-smi") is not None or any(file.exists() for file in files)


def configured_sources(listing: str) -> list[str]:
    """Return which keys of `pip config list` say where packages come from. A key without a value says nothing."""
    found = []
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in SOURCES and value.strip("'\" ") and key not in found:
            found.append(key)
    return found


def decide(environ: Mapping[str, str], platform: str, driver: bool, sources: Sequence[str]) -> tuple[str, str]:
    """Return what to do, and the line that says so: `index`, `cpu`, or `pip`, which is to do nothing."""
    if "TORCH_INDEX" in environ:
        if environ["TORCH_INDEX"].strip().lower() in ("", "none"):
            return "pip", f"the registry's build, as TORCH_INDEX says; with CUDA it is {DEFAULT_BUILD}"
        return "index", f"the build that TORCH_INDEX has; for the CPU it is {CPU_BUILD}, with CUDA {DEFAULT_BUILD}"
    if sources:
        return "pip", (
            f"your pip configuration ({', '.join(sources)}) says where it comes from; "
            f"for the CPU it is {CPU_BUILD}, with CUDA {DEFAULT_BUILD}. {WHY}"
        )
    if platform != "linux":
        return "pip", f"the registry's build, {MAC_BUILD}"
    if driver:
        return "pip", f"an NVIDIA driver is here, so the build with CUDA: {DEFAULT_BUILD}. {WHY}"
    return "cpu", f"no NVIDIA driver is here, so the CPU build if the framework's index can be reached: {CPU_BUILD}"


def decision() -> tuple[str, str]:
    """Decide for this machine, this environment and this user."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    return decide(os.environ, sys.platform, has_driver(), configured_sources(listing))


def choose() -> int:
    """Say what will be installed; 0 means that `fetch` has something to do."""
    if installed():
        return 1
    what, line = decision()
    say(line)
    return 1 if what == "pip" else 0


def fetch(uv: str, constraints: str) -> int:
    """Install torch, and nothing else, as decided. 2 means that the index that the user named did not have it."""
    if decision()[0] == "index":
        return from_index(os.environ["TORCH_INDEX"].strip(), constraints)
    command = [
        uv,
        "pip",
        "install",
        "--python",
        sys.executable,
        "--torch-backend",
        "cpu",
        "--no-deps",
        "--no-progress",
    ]
    command += ["-c", constraints, "torch"]
    reason = unreachable([*command, "--dry-run"])
    if reason is None and subprocess.run(command, env=_certified(), check=False).returncode == 0:
        return 0
    say(f"the CPU build could not be had ({reason or 'see above'}), so the registry's: {DEFAULT_BUILD}. {WHY}")
    return 0


def from_index(index: str, constraints: str) -> int:
    """Install torch from one index and from nowhere else."""
    address = index if "://" in index else Path(index).resolve().as_uri()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    command += ["--no-deps", "--index-url", address, "--retries", "1", "-c", constraints, "torch"]
    if subprocess.run(command, check=False).returncode == 0:
        return 0
    print(
        f"TORCH_INDEX={index} has no torch for this machine; TORCH_INDEX=none takes the registry's", file=sys.stderr
    )
    return 2


def unreachable(command: Sequence[str]) -> str | None:
    """Return why a resolution without downloads fails, None when it does not: a matter of seconds."""
    brief = {
        "UV_HTTP_TIMEOUT": f"{PROBE_S / 4:g}",
        "UV_HTTP_CONNECT_TIMEOUT": f"{PROBE_S / 4:g}",
        "UV_HTTP_RETRIES": "0",
    }
    try:
        done = subprocess.run(
            command, env=_certified() | brief, capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except OSError as error:
        return f"uv does not start: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_S:g} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return None if done.returncode == 0 else (lines[-1] if lines else f"uv ended with {done.returncode}")


def _certified() -> dict[str, str]:
    """Return the environment, in which uv trusts the certificates that pip was told to."""
    given = dict(os.environ)
    if "PIP_CERT" in given:
        given.setdefault("SSL_CERT_FILE", given["PIP_CERT"])
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two steps; return the exit status."""
    parser = argparse.ArgumentParser(description="Choose the build of torch that make installs.")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("choose", help="say which build, and how large; 0 when `fetch` has something to do")
    fetching = steps.add_parser("fetch", help="install torch, where it is not left to pip")
    fetching.add_argument("--uv", required=True, help="the uv to ask for the CPU build")
    fetching.add_argument("--constraints", default="constraints.txt")
    given = parser.parse_args(arguments)
    return choose() if given.step == "choose" else fetch(given.uv, given.constraints)


if __name__ == "__main__":
    sys.exit(main())
