"""The whole product on the demo model: worker, proxy and controller, measured end to end.

    python -m benchmarks.spine [--quick] [--json FILE]

Starts `trimtab up` on free ports and measures, in one run on one machine:

* 16 concurrent streams of different lengths against the same 16 one after another;
* the worker's mean running batch meanwhile, and whether short streams return before long ones;
* what `max_batch_size` does when the SLO is halved and doubled under load, and whether a request fails;
* what is left in flight, queued and in the block pool after clients that hang up at random moments;
* the resident memory of an idle proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.bars import Bar, report

PROMPTS = (
    "Tell me a short story about a lighthouse keeper.",
    "List three uses for a brick.",
    "Explain to a child why the sky is blue.",
    "Write a haiku about the sea.",
    "What is the capital of France?",
    "Name four planets of the solar system.",
    "How does a sailing boat move against the wind?",
    "Give me advice for learning a new language.",
)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass
class Stack:
    """A running `trimtab up`: where its parts listen, and a session to talk to them."""

    proxy: str
    admin: str
    worker: str
    http: aiohttp.ClientSession
    process: subprocess.Popen[bytes]
    failures: list[str] = field(default_factory=list)

    async def get(self, url: str) -> Any:
        """GET a JSON document."""
        async with self.http.get(url) as response:
            response.raise_for_status()
            return await response.json()

    async def metrics(self, base: str) -> dict[str, float]:
        """Scrape a Prometheus endpoint into {series with its labels: value}."""
        async with self.http.get(f"{base}/metrics") as response:
            response.raise_for_status()
            text = await response.text()
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def pool(self) -> dict[str, Any]:
        """Return the demo pool as the admin API shows it."""
        pools = (await self.get(f"{self.admin}/admin/v1/pools"))["pools"]
        return dict(await self.get(f"{self.admin}/admin/v1/pools/{pools[0]['name']}"))


@asynccontextmanager
async def stack() -> AsyncIterator[Stack]:
    """Start `trimtab up` on free ports, wait until it is ready, stop it by its pid."""
    ports = [free_port() for _ in range(3)]
    command = [sys.executable, "-m", "proxy.cli", "up"]
    command += ["--port", str(ports[0]), "--admin-port", str(ports[1]), "--worker-port", str(ports[2])]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        try:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
                urls = [f"http://127.0.0.1:{port}" for port in ports]
                running = Stack(*urls, http=http, process=process)
                for _ in range(1200):
                    if process.poll() is not None:
                        log.seek(0)
                        raise SystemExit(f"trimtab up ended early:\n{log.read().decode(errors='replace')}")
                    try:
                        async with http.get(f"{urls[2]}/health") as response:
                            if response.status == 200:
                                break
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.25)
                else:
                    raise SystemExit("trimtab up was not ready within 300 s")
                yield running
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def stream(running: Stack, prompt: str, max_tokens: int, *, hang_up_after: float | None = None) -> float:
    """Run one streamed chat to its end and return its seconds; with `hang_up_after`, leave then."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        # Nobody profits from a prefix that an earlier stream has computed.
        "cache_salt": uuid.uuid4().hex,
    }
    begin = time.perf_counter()
    tail = b""
    try:
        async with asyncio.timeout(hang_up_after):
            async with running.http.post(f"{running.proxy}/v1/chat/completions", json=body) as response:
                async for piece in response.content.iter_any():
                    tail = (tail + piece)[-256:]
                if response.status != 200 or not tail.rstrip().endswith(b"data: [DONE]"):
                    running.failures.append(f"status {response.status}, ends {tail[-120:]!r}")
    except TimeoutError:
        pass
    except aiohttp.ClientError as error:
        running.failures.append(repr(error))
    return time.perf_counter() - begin


async def concurrency(running: Stack, tokens: list[int]) -> dict[str, float]:
    """Compare the streams one after another with the same ones at once."""
    jobs = [(PROMPTS[i % len(PROMPTS)], count) for i, count in enumerate(tokens)]
    begin = time.perf_counter()
    for prompt, count in jobs:
        await stream(running, prompt, count)
    serial = time.perf_counter() - begin
    before = await running.metrics(running.worker)
    begin = time.perf_counter()
    seconds = await asyncio.gather(*(stream(running, prompt, count) for prompt, count in jobs))
    together = time.perf_counter() - begin
    after = await running.metrics(running.worker)
    steps = total(after, "trimtab_worker_steps_total") - total(before, "trimtab_worker_steps_total")
    rows = total(after, "trimtab_worker_step_sequences_total") - total(before, "trimtab_worker_step_sequences_total")
    ordered = sorted(zip(tokens, seconds, strict=True))
    half = len(ordered) // 2
    return {
        "serial_s": serial,
        "together_s": together,
        "ratio": together / serial,
        "mean_running": rows / steps if steps else 0.0,
        "short_before_long": float(
            statistics.median(s for _, s in ordered[:half]) < statistics.median(s for _, s in ordered[half:])
        ),
    }


def total(samples: dict[str, float], name: str) -> float:
    """Sum a metric over its labels."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name)


async def retune(running: Stack, ticks: int) -> dict[str, Any]:
    """Halve and double the SLO under a steady closed-loop load; watch the knob for `ticks` ticks each."""
    pool = await running.pool()
    url = f"{running.admin}/admin/v1/pools/{pool['name']}"
    stop = asyncio.Event()

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            await stream(running, rng.choice(PROMPTS), rng.randrange(8, 33))

    clients = [asyncio.create_task(client(seed)) for seed in range(16)]
    moves: dict[str, Any] = {}
    try:
        await asyncio.sleep(ticks)
        # Only the pace is promised: a promise on whole requests would have infeasible ones refused, as it should.
        async with running.http.patch(f"{url}/slo", json={"ttft_ms": None, "e2e_ms": None}) as response:
            response.raise_for_status()
        base = (await running.pool())["live"]["quantiles"]["tpot"]["p50"]["value_ms"]
        for name, factor in (("halved", 0.5), ("doubled", 2.0)):
            start = (await running.pool())["setpoints"]["max_batch_size"]
            async with running.http.patch(f"{url}/slo", json={"tpot_ms": base * factor}) as response:
                response.raise_for_status()
            sizes = []
            for _ in range(ticks):
                await asyncio.sleep(1)
                sizes.append((await running.pool())["setpoints"]["max_batch_size"])
            moves[name] = {"target_ms": base * factor, "from": start, "sizes": sizes}
        decisions = (await running.get(f"{url}/decisions?limit=20"))["decisions"]
        moves["why"] = [d["text"] for d in decisions]
    finally:
        stop.set()
        await asyncio.gather(*clients)
    return moves


async def hang_ups(running: Stack, clients: int) -> dict[str, float]:
    """Let clients hang up at random moments, then look at what is left behind."""
    rng = random.Random(7)
    await asyncio.gather(
        *(
            stream(running, rng.choice(PROMPTS), rng.randrange(4, 64), hang_up_after=rng.uniform(0.0, 6.0))
            for _ in range(clients)
        )
    )
    for _ in range(100):
        pool = await running.pool()
        worker = await running.metrics(running.worker)
        if not (pool["inflight"] or pool["queued"] or total(worker, "vllm:num_requests_running")):
            break
        await asyncio.sleep(0.1)
    blocks = {
        kind: total(worker, f"trimtab_worker_kv_blocks_{kind}") for kind in ("free", "cached", "owned", "total")
    }
    before = len(running.failures)
    await stream(running, PROMPTS[0], 8)
    return {
        "inflight": pool["inflight"],
        "queued": pool["queued"],
        "leaked_blocks": blocks["total"] - blocks["free"] - blocks["cached"],
        "next_works": float(len(running.failures) == before),
    }


def idle_memory_mb() -> float:
    """Start a proxy alone and return its resident memory once it is ready, in megabytes (10^6)."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "trimtab.yaml"
        config.write_text(
            f"upstreams: [http://127.0.0.1:9]\nlisten: {{port: {free_port()}}}\nadmin: {{port: {free_port()}}}\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy.cli", "serve", "-c", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(4)
            status = Path(f"/proc/{process.pid}/status").read_text()
            return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024 / 1e6
        finally:
            process.terminate()
            process.wait(30)


async def measure(quick: bool) -> list[Bar]:
    """Run everything and return the bars."""
    bars = [Bar.below("idle proxy resident memory, MB", idle_memory_mb(), 90)]
    async with stack() as running:
        rng = random.Random(1)
        tokens = [rng.randrange(4, 24) if i % 2 else rng.randrange(32, 64) for i in range(16)]
        if quick:
            tokens = [max(4, count // 2) for count in tokens]
        await stream(running, PROMPTS[0], 4)
        result = await concurrency(running, tokens)
        print(
            f"16 streams: {result['together_s']:.1f} s at once, {result['serial_s']:.1f} s one after another, "
            f"mean running batch {result['mean_running']:.1f}"
        )
        bars.append(Bar.below("16 streams at once / one after another", result["ratio"], 0.55))
        bars.append(Bar.above("mean running batch", result["mean_running"], 4))
        bars.append(Bar.above("short streams return before long ones (1 = yes)", result["short_before_long"], 1))
        moves = await retune(running, 10)
        print(json.dumps(moves, indent=1))
        shrank = min(moves["halved"]["sizes"]) < moves["halved"]["from"]
        grew = max(moves["doubled"]["sizes"]) > moves["doubled"]["from"]
        bars.append(Bar.above("SLO halved: max_batch_size fell within 10 ticks (1 = yes)", float(shrank), 1))
        bars.append(Bar.above("SLO doubled: max_batch_size rose within 10 ticks (1 = yes)", float(grew), 1))
        bars.append(Bar.below("failed requests while retuning", len(running.failures), 0))
        if running.failures:
            print("\n".join(running.failures[:5]))
        left = await hang_ups(running, 60 if quick else 200)
        bars.append(Bar.below("in flight after the hang-ups", left["inflight"], 0))
        bars.append(Bar.below("queued after the hang-ups", left["queued"], 0))
        bars.append(Bar.below("blocks neither free nor cached after the hang-ups", left["leaked_blocks"], 0))
        bars.append(Bar.above("the next request works (1 = yes)", left["next_works"], 1))
    return bars


def main() -> int:
    """Parse the options, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter streams and fewer clients")
    parser.add_argument("--json", metavar="FILE", help="write the bars there as JSON")
    options = parser.parse_args()
    return report(asyncio.run(measure(options.quick)), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
