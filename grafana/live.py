"""The live product under a scripted load, scraped by a real Prometheus: what `grafana/check.py` questions.

The script is short and has something to show in every panel: streams, plain requests and embeddings of three classes,
faulty requests, callers that leave, a burst that has to wait, and an operator who tightens the SLO, loosens it
again, pins a setpoint for a moment and reloads.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

__all__ = ["Running", "Script", "started"]

HERE = Path(__file__).resolve().parent
PREFIX = "You are a careful assistant. You answer in one short sentence, and you say so when you do not know. "
ENDS = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at")
CLASSES = ("interactive", "default", "batch")
EASY = {"tpot_ms": 1500}
TIGHT = "tpot"
"""The latency whose SLO is tightened until some requests miss it, however fast the machine is."""
TARGETS = ("slo.ttft_ms=5000", "slo.e2e_ms=20000", "slo.queue_ms=10000")
SHIFTS = (
    (0.20, "PATCH", "/admin/v1/pools/default/setpoints?for_s=5", {"window_ms": 900}),
    (0.35, "PATCH", "/admin/v1/pools/default/slo", TIGHT),
    (0.60, "PATCH", "/admin/v1/pools/default/slo", EASY),
    (0.65, "PATCH", "/admin/v1/pools/default/setpoints?for_s=6", {"max_batch_size": 3}),
    (0.85, "POST", "/admin/v1/reload", None),
)
"""What the operator does, and at which part of the time."""
STEADY, BURST = 5, 14
"""Clients that are always there, and those that come on top for the middle of the last third."""


class Running(NamedTuple):
    """Where things are once everything runs."""

    data: str
    admin: str
    prometheus: str


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command; end it with SIGTERM, then SIGKILL."""
    running = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(running.communicate(), 20)
            except TimeoutError:
                running.kill()
                await running.wait()


async def until_ready(http: aiohttp.ClientSession, url: str, running: asyncio.subprocess.Process) -> None:
    """Wait until `url` answers 200."""
    while running.returncode is None:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(url) as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.2)
    raise SystemExit(f"{url} never answered: the process behind it ended with {running.returncode}")


def _commands(port: int, admin: int, worker: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how to start the bundled worker, and two proxy processes in front of it."""
    model = (sys.executable, "-m", "backend", "--model", "demo", "--dtype", "float32", "--port", str(worker))
    upstream = f"upstreams=[{{url: 'http://127.0.0.1:{worker}', profile: trimtab-worker}}]"
    chosen = (upstream, f"slo.tpot_ms={EASY['tpot_ms']}", *TARGETS, "predictor.mode=history", "drain.grace_s=0",
              "setpoints.window_ms.max=1000")  # fmt: skip
    proxy = (
        sys.executable, "-m", "proxy.cli", "serve", "--workers", "2", "--port", str(port), "--admin-port", str(admin),
        *(word for one in chosen for word in ("--set", one)),
    )  # fmt: skip
    return model, proxy


@contextlib.asynccontextmanager
async def started(http: aiohttp.ClientSession) -> AsyncIterator[Running]:
    """Start the product, and a Prometheus that scrapes it every second with our rules."""
    port, admin, worker, server = (free_port() for _ in range(4))
    config = (HERE / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8081", f"127.0.0.1:{admin}").replace("127.0.0.1:8000", f"127.0.0.1:{worker}")
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s").replace(
        "evaluation_interval: 15s", "evaluation_interval: 5s"
    )
    model, proxy = _commands(port, admin, worker)
    urls = Running(*(f"http://127.0.0.1:{number}" for number in (port, admin, server)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prometheus.yml"
        file.write_text(config.replace("- rules.yml", f"- {HERE / 'rules.yml'}"))
        scraper = (
            "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{server}",
        )  # fmt: skip
        async with process(*model) as engine:
            await until_ready(http, f"http://127.0.0.1:{worker}/health", engine)
            async with process(*proxy) as front:
                await until_ready(http, f"{urls.admin}/readyz", front)
                async with process(*scraper) as reader:
                    await until_ready(http, f"{urls.prometheus}/-/ready", reader)
                    yield urls


class Script:
    """Sends the load. `sent` counts requests."""

    def __init__(self, http: aiohttp.ClientSession, running: Running, seconds: float) -> None:
        self._http = http
        self._running = running
        self._seconds = seconds
        self._start = time.monotonic()
        self.sent = 0

    async def run(self) -> int:
        """Play the whole script; return how many requests were sent."""
        clients = [self._client(number, 0.0, 1.0) for number in range(STEADY)]
        clients += [self._client(number, 0.7, 0.85) for number in range(BURST)]
        await asyncio.gather(*clients, *(self._shift(*shift) for shift in SHIFTS))
        return self.sent

    async def _until(self, part: float) -> None:
        await asyncio.sleep(max(0.0, self._start + part * self._seconds - time.monotonic()))

    async def _client(self, number: int, first: float, last: float) -> None:
        await self._until(first)
        while time.monotonic() < self._start + last * self._seconds:
            kind, self.sent = (self.sent + number) % 10, self.sent + 1
            path, body = self._request(kind)
            headers = {"x-trimtab-class": CLASSES[self.sent % 3], "x-trimtab-tenant": f"team-{self.sent % 2}"}
            limit = aiohttp.ClientTimeout(total=0.3 if kind == 7 else 30)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                url = self._running.data + path
                async with self._http.post(url, json=body, headers=headers, timeout=limit) as answer:
                    await answer.read()
                if answer.status == 503:
                    await asyncio.sleep(min(1.0, float(answer.headers.get("Retry-After", "1"))))

    def _request(self, kind: int) -> tuple[str, dict[str, Any]]:
        """Return a request: 0 to 5 stream, 6 is faulty, 7 is left early, 8 embeds, 9 waits for the whole answer."""
        prompt = PREFIX + ENDS[self.sent % len(ENDS)]
        if kind == 8:
            return "/v1/embeddings", {"model": "demo", "input": [prompt, "a second text"]}
        length = -1 if kind == 6 else 4 + self.sent % 8
        return "/v1/completions", {"model": "demo", "prompt": prompt, "max_tokens": length, "stream": kind < 6}

    async def _shift(self, part: float, method: str, path: str, body: dict[str, Any] | str | None) -> None:
        await self._until(part)
        if isinstance(body, str):
            body = {f"{body}_ms": await self._some_late_ms(body)}
        headers = {"x-trimtab-actor": "dashboards-check"}
        async with self._http.request(method, self._running.admin + path, json=body, headers=headers) as answer:
            if answer.status >= 400:
                raise SystemExit(f"{method} {path}: {answer.status} {await answer.text()}")

    async def _some_late_ms(self, latency: str) -> float:
        """Return what more than half and not all of the last minute's requests took at most: between P50 and P95."""
        async with self._http.get(f"{self._running.admin}/admin/v1/pools/default") as answer:
            live = (await answer.json())["live"]
        found = live["quantiles"][latency]
        middle: float = (found["p50"]["value_ms"] + found["p95"]["value_ms"]) / 2.0
        return middle
