"""Starts the interpreted kernel tests in a process of their own, as the interpreter is a matter of a whole one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.triton,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process"),
]


def test_the_kernels_are_right_under_the_interpreter() -> None:
    root = Path(__file__).parents[3]
    files = [
        "tests/backend/attention/test_triton_kernels.py",
        "tests/backend/models/test_triton_ops.py",
        "tests/backend/models/test_triton_runner.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
