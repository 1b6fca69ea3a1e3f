"""Ask every question of every dashboard of a live Trimtab: `python grafana/check.py` (a minute; needs prometheus).

Starts the demo, puts it under a mixed load, scrapes it with a real Prometheus, runs every panel's queries with their
variables filled in, and fails when a panel has no data, a query is refused, or a legend names a label that is not
there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
STEP_S = 2
SPAN_S = 60
PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at")


class Finding(NamedTuple):
    """One query and what came of it; an empty `fault` is none."""

    board: str
    panel: str
    query: str
    fault: str


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def process(*command: str, quiet: bool = True) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command; end it with SIGTERM, then SIGKILL."""
    sink = asyncio.subprocess.DEVNULL if quiet else None
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=sink)
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


async def until_ready(running: asyncio.subprocess.Process) -> None:
    """Wait for the demo's last line."""
    assert running.stdout is not None
    while b"Ctrl-C stops" not in (line := await running.stdout.readline()):
        if not line:
            raise SystemExit("the demo ended before it was ready; try `trimtab up`")


async def load(url: str, end: float) -> int:
    """Send streams, plain requests, faulty ones and broken-off ones until `end`; return how many."""
    sent = 0

    async def client(http: aiohttp.ClientSession, number: int) -> None:
        nonlocal sent
        while time.monotonic() < end:
            kind = (sent + number) % 8
            body: dict[str, Any] = {"model": "demo", "prompt": PROMPTS[sent % 4], "max_tokens": 4 + sent % 8}
            body["stream"] = kind < 5
            if kind == 6:
                body["max_tokens"] = -1
            headers = {"x-trimtab-class": ("interactive", "default", "batch")[sent % 3]}
            sent += 1
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                limit = aiohttp.ClientTimeout(total=0.3 if kind == 7 else 30)
                async with http.post(f"{url}/v1/completions", json=body, headers=headers, timeout=limit) as answer:
                    await answer.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http, number) for number in range(6)))
    return sent


class Prometheus:
    """A client of Prometheus' query API, with Grafana's variables filled in."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.variables = {"__rate_interval": "15s", "__interval": "5s", "__range": f"{SPAN_S}s"}

    async def get(self, path: str, **query: str) -> Any:
        """Return the data of an API call. Raises ValueError with Prometheus' own words."""
        async with self._http.get(f"{self._url}/api/v1/{path}", params=query) as answer:
            body = await answer.json()
        if body["status"] != "success":
            raise ValueError(body["error"])
        return body["data"]

    async def learn(self, board: dict[str, Any]) -> list[str]:
        """Fill in a dashboard's own variables; return those that have no values."""
        empty = []
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            values = await self.get(f"label/{label}/values", **{"match[]": metric})
            self.variables[variable["name"]] = "|".join(re.escape(value).replace("\\", "\\\\") for value in values)
            if not values:
                empty.append(variable["name"])
        return empty

    def fill(self, expression: str) -> str:
        """Replace $name and ${name} in a query."""
        return re.sub(r"\$\{?(\w+)\}?", lambda match: self.variables.get(match[1], match[0]), expression)

    async def series(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of a range query over the last minute that have a finite value."""
        now = time.time()
        data = await self.get(
            "query_range", query=self.fill(expression), start=str(now - SPAN_S), end=str(now), step=str(STEP_S)
        )
        return [one for one in data["result"] if any(math.isfinite(float(value)) for _, value in one["values"])]


async def examine(prometheus: Prometheus, name: str, board: dict[str, Any]) -> list[Finding]:
    """Run every query of a dashboard."""
    found = [Finding(name, "variables", variable, "no values") for variable in await prometheus.learn(board)]
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        queries = []
        for target in panel["targets"]:
            fault = await _ask(prometheus, target)
            queries.append(Finding(name, panel["title"], target["expr"], fault))
        empty = all(query.fault == "no data" for query in queries)
        found += [query for query in queries if query.fault not in ("", "no data") or empty]
    return found


async def _ask(prometheus: Prometheus, target: dict[str, Any]) -> str:
    try:
        series = await prometheus.series(target["expr"])
    except ValueError as error:
        return str(error)
    if not series:
        return "no data"
    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
        if not any(label in one["metric"] for one in series):
            return f"no label {label}"
    return ""


async def run(seconds: float) -> int:
    """Start everything, wait, ask; return the exit code."""
    port, admin, worker, server = (free_port() for _ in range(4))
    demo = (
        sys.executable, "-m", "proxy.cli", "up", "--port", str(port), "--admin-port", str(admin), "--worker-port",
        str(worker), "--set", "slo.tpot_ms=500", "--set", "slo.queue_ms=2000", "--set", "drain.grace_s=0",
    )  # fmt: skip
    config = (HERE / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8081", f"127.0.0.1:{admin}").replace("127.0.0.1:8000", f"127.0.0.1:{worker}")
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s").replace(
        "evaluation_interval: 15s", "evaluation_interval: 5s"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prometheus.yml"
        file.write_text(config.replace("- rules.yml", f"- {HERE / 'rules.yml'}"))
        scraper = (
            "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{server}",
        )  # fmt: skip
        async with process(*demo) as running:
            await until_ready(running)
            async with process(*scraper), aiohttp.ClientSession() as http:
                sent = await load(f"http://127.0.0.1:{port}", time.monotonic() + seconds)
                prometheus = Prometheus(http, f"http://127.0.0.1:{server}")
                return await report(prometheus, sent)


async def report(prometheus: Prometheus, sent: int) -> int:
    """Print what was found; return 1 when there was a fault."""
    faults: list[Finding] = []
    panels = 0
    for path in sorted((HERE / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        panels += sum(panel["type"] != "row" for panel in board["panels"])
        faults += await examine(prometheus, path.stem, board)
    for board_name, panel, query, fault in faults:
        print(f"{board_name} / {panel}: {fault}\n    {query}")
    print(f"{panels} panels under {sent} requests: {len(faults) or 'no'} fault{'' if len(faults) == 1 else 's'}")
    return 1 if faults else 0


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to put it under load")
    seconds = parser.parse_args().seconds
    if shutil.which("prometheus") is None:
        raise SystemExit("prometheus is not installed; on Debian: apt-get install prometheus")
    return asyncio.run(run(seconds))


if __name__ == "__main__":
    sys.exit(main())
