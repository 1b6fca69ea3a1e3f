"""Real processes: exit codes, ports, signals and children."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

COMMAND = [sys.executable, "-m", "proxy.cli"]
ROOT = Path(__file__).resolve().parents[3]
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


def environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
    return {**clean, "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def process(*arguments: str, cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `trimtab`; kill what is left of it at the end."""
    running = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, cwd=cwd, env=environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@asynccontextmanager
async def serving(*arguments: str, cwd: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """Run `trimtab serve` on free ports; yield it with the URLs it printed."""
    ports = ("--port", "0", "--admin-port", "0")
    async with process("serve", *ports, "--set", "drain.grace_s=0", *arguments, cwd=cwd) as running:
        assert running.stderr is not None
        urls = []
        while len(urls) < 2:
            line = (await running.stderr.readline()).decode()
            assert line, "it ended before it served"
            if line.startswith(("proxy", "admin")):
                found = ADDRESS.search(line)
                assert found
                urls.append(found.group())
        yield running, urls[0], urls[1]


async def outcome(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run `trimtab` to its end; return the exit code and stderr."""
    async with process(*arguments, cwd=cwd) as running:
        _, stderr = await running.communicate()
        assert running.returncode is not None
        return running.returncode, stderr.decode()


async def test_serves_until_terminated(tmp_path: Path) -> None:
    async with serving("--upstream", "http://127.0.0.1:1", cwd=tmp_path) as (running, data, admin):
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{admin}/healthz") as answer:
                assert answer.status == 200
            async with http.get(f"{admin}/readyz") as answer:
                assert answer.status == 503, "its upstream does not answer"
            async with http.get(f"{data}/v1/models") as answer:
                assert (answer.status, answer.headers["x-trimtab-reason"]) == (503, "no_upstream")
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
async def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--admin-port" if which == "--port" else "--port"
        code, said = await outcome("serve", "--upstream", "http://127.0.0.1:1", which, port, other, "0", cwd=tmp_path)
    key = "listen" if which == "--port" else "admin"
    assert (code, said) == (2, f"trimtab: 127.0.0.1:{port}: the port is in use; stop what listens there, or choose "
                               f"another port with {which} or {key}.port\n")  # fmt: skip


async def test_up_refuses_a_taken_port_before_the_worker_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = await outcome("up", "--port", port, "--admin-port", "0", cwd=tmp_path)
    assert code == 2
    assert "the port is in use" in said
    assert "worker" not in said


async def test_up_passes_the_workers_refusal_on(tmp_path: Path) -> None:
    code, said = await outcome("up", "--model", str(tmp_path), "--port", "0", "--admin-port", "0", cwd=tmp_path)
    assert code == 2
    assert str(tmp_path) in said
    assert "Traceback" not in said


async def test_a_wrong_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trimtab.yaml").write_text("upstreams: [http://a:1]\nsetpoints: {window_ms: -3}\n")
    code, said = await outcome("serve", cwd=tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("trimtab: trimtab.yaml:2: setpoints.window_ms.initial: got -3; accepted: ")


async def test_hangup_reads_the_configuration_again(tmp_path: Path) -> None:
    file = tmp_path / "trimtab.yaml"
    file.write_text("upstreams: [http://127.0.0.1:1]\nslo: {e2e_ms: 5000}\n")
    async with serving(cwd=tmp_path) as (running, _, admin), aiohttp.ClientSession() as http:
        assert running.stderr is not None
        file.write_text("upstreams: [http://127.0.0.1:1]\nslo: {e2e_ms: 7000}\n")
        running.send_signal(signal.SIGHUP)
        await said(running.stderr, "reloaded: generation 2, changed pools.default.slo")
        file.write_text("upstreams: [http://127.0.0.1:1]\nslo: {e2e: 9000}\n")
        running.send_signal(signal.SIGHUP)
        await said(running.stderr, "the old configuration stays")
        async with http.get(f"{admin}/admin/v1/pools/default") as answer:
            assert (await answer.json())["slo"]["e2e_ms"] == 7000


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_hangup_while_it_starts_reads_the_configuration_again_once_it_has(
    tmp_path: Path, workers: str
) -> None:
    file = tmp_path / "trimtab.yaml"
    os.mkfifo(file)
    options = ("--port", "0", "--admin-port", "0", "--set", "drain.grace_s=0", "--workers", workers)
    async with process("serve", "-c", str(file), *options, cwd=tmp_path) as running:
        assert running.stderr is not None
        with await asyncio.to_thread(file.open, "w") as early:
            # It is about to read, and far from serving.
            running.send_signal(signal.SIGHUP)
            early.write("upstreams: [http://127.0.0.1:1]\nslo: {e2e_ms: 5000}\n")
        await said(running.stderr, "admin ")
        with await asyncio.to_thread(file.open, "w") as later:
            later.write("upstreams: [http://127.0.0.1:1]\nslo: {e2e_ms: 7000}\n")
        await said(running.stderr, "reloaded: generation 2, changed pools.default.slo")
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


async def said(stream: asyncio.StreamReader, words: str) -> None:
    """Read lines until one has `words` in it."""
    while words not in (line := (await stream.readline()).decode()):
        assert line, f"it ended without saying {words!r}"


async def test_an_idle_proxy_is_small_and_imports_no_worker(tmp_path: Path) -> None:
    async with serving("--upstream", "http://127.0.0.1:1", cwd=tmp_path) as (running, _, admin):
        async with aiohttp.ClientSession() as http, http.get(f"{admin}/metrics") as answer:
            assert answer.status == 200
        status = Path(f"/proc/{running.pid}/status")
        if status.exists():
            (resident,) = re.findall(r"VmRSS:\s+(\d+) kB", status.read_text())
            assert int(resident) < 90 * 1024


async def test_importing_the_proxy_imports_no_worker() -> None:
    script = (
        "import sys, proxy.app, proxy.run, proxy.cli.up, proxy.cli.serve\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'transformers', 'backend'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await running.communicate()
    assert out.decode().strip() == "[]"


async def test_logs_are_json_off_a_terminal(tmp_path: Path) -> None:
    async with serving("--upstream", "http://127.0.0.1:1", cwd=tmp_path) as (running, _, _):
        running.send_signal(signal.SIGTERM)
        _, stderr = await running.communicate()
    lines = [json.loads(line) for line in stderr.decode().splitlines()]
    assert any(line["message"].startswith("draining: 0 requests") for line in lines)
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
