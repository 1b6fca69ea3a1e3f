"""Ask every question of every dashboard of a live Trimtab: `python grafana/check.py` (two minutes; needs prometheus).

Starts the product, plays a scripted load (`grafana/live.py`), scrapes it with a real Prometheus, runs every panel's
queries with their variables filled in, and fails when a panel has no data, a query is refused, or a legend names a
label that is not there. With `--pictures FOLDER` each dashboard is drawn by Grafana's own libraries and photographed,
too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp

from grafana.live import Script, started
from grafana.pictures import Span, built, cache_folder, photograph

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
STEP_S = 2
GPU = "trimtab_worker_gpu_"
"""What is exposed only by a worker that runs on a GPU."""


class Finding(NamedTuple):
    """One query and what came of it; an empty `fault` is none."""

    board: str
    panel: str
    query: str
    fault: str


class Prometheus:
    """A client of Prometheus' query API, with Grafana's variables filled in."""

    def __init__(self, http: aiohttp.ClientSession, url: str, span_s: float, end: float) -> None:
        """Ask about the `span_s` seconds before `end` (Unix seconds), however long asking takes."""
        self._http = http
        self._url = url
        self._span_s = span_s
        self._end = end
        self.variables = {"__rate_interval": "15s", "__interval": "5s", "__range": f"{span_s:g}s"}

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
        """Return the series of a range query over the time of the load that have a finite value."""
        start, end = str(self._end - self._span_s), str(self._end)
        data = await self.get("query_range", query=self.fill(expression), start=start, end=end, step=str(STEP_S))
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


def without_gpu(board: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard as far as it has data where there is no GPU: without those panels and their heading."""
    kept: list[dict[str, Any]] = []
    for panel in board["panels"]:
        if panel["type"] == "row" or not all(GPU in target["expr"] for target in panel["targets"]):
            kept.append(panel)
    while kept and kept[-1]["type"] == "row":
        kept.pop()
    return {**board, "panels": kept}


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


async def run(seconds: float, pictures: Path | None, workshop: Path) -> int:
    """Start everything, play the script, ask, and take pictures where wanted; return the exit code."""
    page = None if pictures is None else await built(workshop)
    async with aiohttp.ClientSession() as http, started(http) as running:
        sent = await Script(http, running, seconds).run()
        boards = [(path.stem, json.loads(path.read_text())) for path in sorted((HERE / "dashboards").glob("*.json"))]
        end = time.time()
        prometheus = Prometheus(http, running.prometheus, seconds, end)
        if not await prometheus.series(f"{GPU}memory_total_bytes"):
            print("the worker runs without a GPU: panels about one are left out")
            boards = [(name, without_gpu(board)) for name, board in boards]
        faults = await _ask_all(prometheus, boards, sent)
        taken = []
        if page is not None and pictures is not None:
            taken = await photograph(page, running.prometheus, boards, pictures, Span(end - seconds, end))
    broken = [f"{one.board}: {fault}" for one in taken for fault in one.faults]
    for one in taken:
        print(f"picture: {one.file}")
    print("\n".join(broken), end="\n" if broken else "")
    return 1 if faults or broken else 0


async def _ask_all(prometheus: Prometheus, boards: Sequence[tuple[str, dict[str, Any]]], sent: int) -> int:
    """Print what was found; return how many faults there are."""
    faults: list[Finding] = []
    for name, board in boards:
        faults += await examine(prometheus, name, board)
    panels = sum(panel["type"] != "row" for _, board in boards for panel in board["panels"])
    for board_name, panel, query, fault in faults:
        print(f"{board_name} / {panel}: {fault}\n    {query}")
    print(f"{panels} panels under {sent} requests: {len(faults) or 'no'} fault{'' if len(faults) == 1 else 's'}")
    return len(faults)


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to put it under load")
    parser.add_argument("--pictures", type=Path, help="folder to put a picture of every dashboard into")
    parser.add_argument("--workshop", type=Path, default=cache_folder(), help="where Grafana's libraries are kept")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        raise SystemExit("prometheus is not installed; on Debian: apt-get install prometheus")
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    return asyncio.run(run(options.seconds, options.pictures, options.workshop))


if __name__ == "__main__":
    sys.exit(main())
