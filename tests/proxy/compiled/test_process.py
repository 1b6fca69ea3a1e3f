"""The promises that are kept over a socket are kept by the compiled modules, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from proxy.cli import main
from proxy.compiled import is_active
from proxy.compiled.build import build, why_not
from proxy.compiled.finder import VARIABLE
from proxy.compiled.store import build_folder, extension_files

ROOT = Path(__file__).parents[3]
SUITES = (
    "tests/conformance",
    "tests/proxy/wire",
    "tests/proxy/cli/test_commands.py",
    "tests/proxy/cli/test_ctl.py",
    "tests/proxy/cli/test_simulate.py",
    "tests/proxy/cli/test_up.py::test_the_printed_command_answers_with_real_text_and_ctrl_c_leaves_nothing",
    "tests/docs/test_offline.py",
    "tests/docs/test_live.py",
    "tests/e2e/test_spine_client.py",
    "tests/e2e/test_workers.py",
)
COMMANDS = {
    "up": "tests/proxy/cli/test_up.py",
    "serve": "tests/e2e/test_spine_client.py",
    "worker": "tests/proxy/cli/test_up.py",
    "ctl": "tests/docs/test_live.py",
    "simulate": "tests/docs/test_offline.py",
    "compile": "tests/docs/test_offline.py",
    "config": "tests/docs/test_offline.py",
}
"""Where each subcommand runs for real."""


def test_every_subcommand_runs_compiled_too() -> None:
    assert set(COMMANDS) == set(main.list_commands(click.Context(main)))
    for file in COMMANDS.values():
        assert (ROOT / file).is_file()
        assert file in {suite.partition("::")[0] for suite in SUITES}, file


@pytest.mark.skipif(is_active(), reason="this is that process")
@pytest.mark.skipif(why_not() is not None, reason=f"nothing can be compiled: {why_not()}")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_compiled_keeps_every_promise_of_the_source() -> None:
    folder = build(os.cpu_count() or 1)
    assert folder == build_folder()
    assert any(name.endswith("__mypyc") for name in extension_files(folder))
    options = ("-q", "-p", "no:cacheprovider", "-n2", "--dist=loadfile")
    command = [sys.executable, "-m", "pytest", *options, *SUITES]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | {VARIABLE: "1"}, capture_output=True, text=True, timeout=3000, check=False
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
