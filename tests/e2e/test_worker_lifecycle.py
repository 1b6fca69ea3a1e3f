"""The worker as a process: how it starts, refuses to start, and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path

import pytest

from tests.e2e.worker_process import WorkerProcess, eventually, run_worker_to_its_end, started_worker

SMALL = ("--model", "demo", "--num-blocks", "64")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with started_worker(*SMALL, "--grace-s", "20") as worker:
        yield worker


def open_stream(worker: WorkerProcess, max_tokens: int) -> HTTPConnection:
    """Start a streaming completion and return its connection."""
    connection = HTTPConnection(worker.listening["host"], worker.listening["port"], timeout=60)
    body = {"prompt": "Count:", "max_tokens": max_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody reaped yet has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_it_loads_serves_drains_and_exits_0() -> None:
    worker = WorkerProcess(*SMALL)
    try:
        assert worker.status("/health") == 503
        assert worker.status("/version") == 200
        worker.wait_ready()
        assert worker.status("/health") == 200
        response = open_stream(worker, 40).getresponse()
        first = response.readline()
        worker.process.terminate()
        rest = response.read()
        code, err = worker.wait()
    finally:
        worker.kill()
    assert first.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n"), "open requests finish"
    assert code == 0
    assert "%" in err, "loading shows progress"
    eventually(lambda: gone(worker.ready["engine_pid"]))


def test_ctrl_c_twice_ends_open_requests_with_an_error(worker: WorkerProcess) -> None:
    """A terminal sends SIGINT to the engine's process too; it is the worker that decides what to do about it."""
    response = open_stream(worker, 800).getresponse()
    response.readline()
    os.killpg(worker.process.pid, signal.SIGINT)
    eventually(lambda: not listens(worker))
    os.killpg(worker.process.pid, signal.SIGINT)
    rest = b"".join(iter_until_cut(response))
    assert b'"error"' in rest
    assert b"[DONE]" not in rest
    assert worker.wait()[0] == 0


def listens(worker: WorkerProcess) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((worker.listening["host"], worker.listening["port"])) == 0


def iter_until_cut(response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            line = response.readline()
        except IncompleteRead as cut:
            yield cut.partial
            return
        if not line:
            return
        yield line


def test_the_death_of_the_engine_fails_open_requests_and_ends_the_worker(worker: WorkerProcess) -> None:
    connection = open_stream(worker, 800)
    response = connection.getresponse()
    response.readline()
    os.kill(worker.ready["engine_pid"], signal.SIGKILL)
    rest = b"".join(iter_until_cut(response))
    assert b'"error"' in rest
    assert b"[DONE]" not in rest
    assert worker.wait()[0] == 1


def test_the_engine_does_not_outlive_a_killed_worker(worker: WorkerProcess) -> None:
    worker.process.kill()
    worker.process.wait(60)
    eventually(lambda: gone(worker.ready["engine_pid"]))


def test_a_signal_while_loading_exits_0() -> None:
    worker = WorkerProcess(*SMALL)
    try:
        worker.process.terminate()
        code, _ = worker.wait()
    finally:
        worker.kill()
    assert code == 0


def test_port_in_use_is_one_line_and_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = run_worker_to_its_end(*SMALL, "--port", str(port))
    assert (code, out) == (2, "")
    assert f"port {port} on 127.0.0.1 is already in use" in err
    assert err.count("\n") == 1


def test_path_that_is_no_model_is_one_line_and_code_2(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    for path in (tmp_path / "missing", tmp_path, broken):
        code, _, err = run_worker_to_its_end("--model", str(path), "--port", "0")
        assert code == 2
        assert err.splitlines()[-1].startswith("trimtab worker: error: ")
        assert "Traceback" not in err
