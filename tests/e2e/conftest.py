"""Processes that several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.spine_process import Up


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`trimtab up` with the demo model: no promise, so that nothing is refused for being slow on a busy machine,
    and the dtype in which its text is the same on every machine.
    """
    running = Up(
        tmp_path_factory.mktemp("up"), "--set", "slo.ttft_ms=null", "--set", "slo.e2e_ms=null",
        "--set", "setpoints.max_batch_size={initial: 8, min: 1, max: 16}",
        "--worker-arg=--dtype", "--worker-arg=float32",
    )  # fmt: skip
    try:
        running.wait_ready()
        yield running
        running.stop()
    finally:
        running.kill()
