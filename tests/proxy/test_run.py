"""The end of the process when everything has been closed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, threading
from proxy import run
run._CLOSING_S = 0.05
async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return {code}
raise SystemExit(run.run_loop(main()))
"""


def test_a_thread_of_the_loop_that_hangs_is_not_waited_for_and_the_exit_code_stays() -> None:
    for code in (0, 3):
        program = [sys.executable, "-c", PROGRAM.format(code=code)]
        assert subprocess.run(program, timeout=60, check=False).returncode == code
