"""Thousands of requests whose fate is known, and every counter and histogram compared with the truth.

    python -m benchmarks.golden --requests 5000 --workers 1,2

Starts a fault-injecting upstream and a real `trimtab serve` for each number of workers, sends a mixture of requests
that go well, fail, are refused, shed, cut off or given up in every way there is, notes what each client saw, scrapes,
and demands that the metrics say exactly the same. Exits with 1 and the differences when they do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.serving import serving
from tests.support.mock_upstream import MockUpstream

__all__ = ["KINDS", "Fate", "compare", "main", "play"]

CHAT, EMBED, COMPLETE = "/v1/chat/completions", "/v1/embeddings", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
_AT_ONCE = 40
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Kind(NamedTuple):
    """One way to send a request."""

    weight: int
    path: str
    body: dict[str, Any] | None
    """None for a body that is no JSON."""
    upstream: Mapping[str, Any] = _NOTHING
    """How the upstream treats it."""
    headers: Mapping[str, str] = _NOTHING
    leaves: bool = False
    """Whether the client goes away once the upstream has its request."""


class Fate(NamedTuple):
    """What became of a request, as its client saw it."""

    kind: str
    status: int
    """499 for a client that left."""
    reason: str
    """x-trimtab-reason."""


def _chat(model: str = "m", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, **more}


KINDS = {
    "chat": Kind(20, CHAT, _chat()),
    "stream": Kind(20, CHAT, _chat(stream=True), {"tokens": 5}),
    "completion": Kind(10, COMPLETE, {"model": "m", "prompt": "a"}),
    "merged": Kind(20, EMBED, {"model": "vectors", "input": ["a", "b"]}),
    "its own error": Kind(5, CHAT, _chat(), {"status": 500}),
    "not found there": Kind(3, CHAT, _chat(), {"status": 404}),
    "broken": Kind(3, CHAT, _chat(), {"reset_before_head": True}),
    "too late": Kind(2, CHAT, _chat(), {"hang": True}, {"x-trimtab-timeout-ms": "400"}),
    "left": Kind(4, CHAT, _chat(), {"hang": True}, leaves=True),
    "nonsense": Kind(5, CHAT, None),
    "nobody's": Kind(2, CHAT, _chat("unknown")),
    "crowd": Kind(8, CHAT, _chat("narrow"), {"delay": 0.1}),
    "hurried crowd": Kind(4, CHAT, _chat("narrow"), {"delay": 0.1}, {"x-trimtab-timeout-ms": "150"}),
}
"""The last two meet a pool with one place and a short queue: they are served, refused, or dropped from the queue."""

POOLS = {"m": "main", "vectors": "vectors", "narrow": "narrow"}
OUTCOMES = {
    "queue_full": "refused",
    "queue_timeout": "shed",
    "upstream_timeout": "timeout",
    "bad_request": "refused",
    "no_route": "refused",
    "upstream_error": "failed",
}
SHED = frozenset({"queue_full", "queue_timeout"})


def config(upstream: str) -> dict[str, Any]:
    """Return the configuration of the run."""
    common = {"upstreams": [upstream], "law_options": {"admission": False}, "retries": {"max": 0}, "law": "fixed",
              "health": {"eject_after": 1000, "interval_ms": 86_400_000, "unhealthy_after": 100}}  # fmt: skip
    wide = {"setpoints": {"max_batch_size": {"initial": 512, "max": 1024}, "window_ms": 0}}
    narrow = {"setpoints": {"max_batch_size": {"initial": 1, "max": 1}, "window_ms": 0}, "queue": {"max_requests": 2}}
    merging = {"setpoints": {"max_batch_size": {"initial": 16, "max": 16}, "window_ms": 2}, "dispatch": "merge"}
    slo = {"slo": {"e2e_ms": 60_000}}
    return {
        "drain": {"grace_s": 0, "cap_s": 30},
        "pools": [
            {"name": "main", "match": {"models": ["m"]}, **common, **wide, **slo},
            {"name": "vectors", "match": {"models": ["vectors"]}, **common, **merging, **slo},
            {"name": "narrow", "match": {"models": ["narrow"]}, **common, **narrow, **slo},
        ],
    }


async def send(http: aiohttp.ClientSession, url: str, kind: str, number: int, upstream: MockUpstream) -> Fate:
    """Send one request; return what its client saw."""
    how = KINDS[kind]
    name = f"golden-{number}"
    headers = {"x-mock": json.dumps(dict(how.upstream)), "Content-Type": "application/json", "x-request-id": name}
    data = "{" if how.body is None else json.dumps(how.body)

    async def ask() -> Fate:
        async with http.post(url + how.path, data=data, headers={**headers, **how.headers}) as answer:
            await answer.read()
            return Fate(kind, answer.status, answer.headers.get("x-trimtab-reason", ""))

    if not how.leaves:
        return await ask()
    # Not after a while: on a busy machine that may be before the proxy has even read the request.
    asking = asyncio.ensure_future(ask())

    def arrived() -> bool:
        return any(seen.header("x-request-id") == name for seen in reversed(upstream.seen))

    while not (asking.done() or arrived()):  # noqa: ASYNC110 - the mock tells nobody
        await asyncio.sleep(0.02)
    asking.cancel()
    await asyncio.wait([asking])
    return Fate(kind, 499, "client_gone") if asking.cancelled() else asking.result()


async def play(
    url: str, admin: str, requests: int, upstream: MockUpstream, seed: int = 7
) -> tuple[list[Fate], dict[str, float]]:
    """Send `requests` requests; return their fates and the samples of a scrape after the last, by series."""
    kinds = random.Random(seed).choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=requests)
    turn = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(number: int, kind: str) -> Fate:
            async with turn:
                return await send(http, url, kind, number, upstream)

        fates = list(await asyncio.gather(*(one(number, kind) for number, kind in enumerate(kinds))))
        for _ in range(40):
            found = await scrape(http, admin)
            if total(found, "trimtab_requests_total") >= requests and not total(found, "trimtab_inflight"):
                break
            await asyncio.sleep(0.05)
    return fates, found


async def scrape(http: aiohttp.ClientSession, admin: str) -> dict[str, float]:
    """Return every sample as `name{a="b"}`, labels in order."""
    async with http.get(f"{admin}/metrics") as answer:
        text = await answer.text()
    return {
        series(sample.name, **sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(name: str, **labels: str) -> str:
    """Return the name of one series."""
    return f"{name}{{{','.join(f'{key}={value}' for key, value in sorted(labels.items()))}}}"


def total(found: dict[str, float], name: str, **labels: str) -> float:
    """Return the sum over all series of `name` with these labels."""
    wanted = {f"{key}={value}" for key, value in labels.items()}
    return sum(
        value
        for text, value in found.items()
        if text.startswith(name + "{") and wanted <= set(text[len(name) + 1 : -1].split(","))
    )


def compare(fates: list[Fate], found: dict[str, float]) -> list[str]:
    """Return every difference between what the clients saw and what was counted; empty when there is none."""
    differences = []

    def expect(name: str, wanted: float, **labels: str) -> None:
        got = total(found, name, **labels)
        if got != wanted:
            differences.append(f"{series(name, **labels)}: {got:g}, the truth is {wanted:g}")

    truth: Counter[tuple[str, str, str, str]] = Counter()
    for fate in fates:
        truth[_pool(fate), _route(fate), _outcome(fate), str(fate.status)] += 1
    counted = {key: value for key, value in _requests(found).items() if value}
    for key in sorted(truth.keys() | counted.keys()):
        if truth[key] != counted.get(key, 0.0):
            differences.append(f"trimtab_requests_total{key}: {counted.get(key, 0.0):g}, the truth is {truth[key]}")
    expect("trimtab_requests_total", len(fates))
    for pool in POOLS.values():
        mine = [fate for fate in fates if _pool(fate) == pool]
        ended = Counter(_outcome(fate) for fate in mine)
        sent = ended["ok"] + ended["failed"] + ended["timeout"]
        went = sent + sum(_outcome(fate) == "cancelled" for fate in mine)
        expect("trimtab_queue_duration_seconds_count", went + ended["shed"], pool=pool)
        expect("trimtab_request_duration_seconds_count", sent, pool=pool)
        streams = sum(fate.kind == "stream" for fate in mine)
        expect("trimtab_time_to_first_token_seconds_count", streams, pool=pool)
        expect("trimtab_inter_token_latency_seconds_count", streams, pool=pool)
        expect("trimtab_slo_requests_total", ended["ok"] + ended["timeout"], pool=pool, slo="e2e")
        expect("trimtab_slo_violations_total", ended["timeout"], pool=pool, slo="e2e")
        unknown = sum(_outcome(fate) == "failed" and fate.status == 404 for fate in mine)
        at_upstreams = {**ended, "failed": ended["failed"] - unknown, "wrong_model": unknown}
        for outcome in ("ok", "failed", "timeout", "wrong_model"):
            expect("trimtab_upstream_requests_total", at_upstreams.get(outcome, 0), pool=pool, outcome=outcome)
        expect("trimtab_batch_size_sum", 2 * went if pool == "vectors" else went, pool=pool)
        expect("trimtab_batches_closed_total", total(found, "trimtab_batch_size_count", pool=pool), pool=pool)
        expect("trimtab_retries_total", 0, pool=pool)
        for reason in sorted(SHED):
            expect("trimtab_shed_total", sum(fate.reason == reason for fate in mine), pool=pool, reason=reason)
        for gauge in ("inflight", "inflight_calls", "queue_size"):
            expect(f"trimtab_{gauge}", 0, pool=pool)
    tokens = 4 * sum(fate.kind in ("chat", "crowd", "hurried crowd") and fate.status == 200 for fate in fates)
    tokens += 5 * sum(fate.kind == "stream" for fate in fates)
    chats = total(found, "trimtab_output_tokens_total", pool="main") + total(
        found, "trimtab_output_tokens_total", pool="narrow"
    )
    if chats != tokens:
        differences.append(f"trimtab_output_tokens_total: {chats:g}, the truth is {tokens}")
    return differences


def _requests(found: dict[str, float]) -> Counter[tuple[str, str, str, str]]:
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for text, value in found.items():
        name, _, rest = text.partition("{")
        if name == "trimtab_requests_total":
            labels = dict(part.split("=", 1) for part in rest[:-1].split(","))
            counted[labels["pool"], labels["route"], labels["outcome"], labels["code"]] += int(value)
    return counted


def _pool(fate: Fate) -> str:
    body = KINDS[fate.kind].body
    if body is None:
        return "main"
    return POOLS.get(body["model"], "none")


def _route(fate: Fate) -> str:
    return {CHAT: "chat.completions", EMBED: "embeddings", COMPLETE: "completions"}[KINDS[fate.kind].path]


def _outcome(fate: Fate) -> str:
    if fate.status == 499:
        return "cancelled"
    if fate.reason:
        return OUTCOMES[fate.reason]
    return "ok" if fate.status < 400 else "failed"


async def run(requests: int, workers: int, folder: Path) -> tuple[list[Fate], list[str], float]:
    """Play against a `trimtab serve` of its own; return fates, differences and seconds."""
    async with (
        MockUpstream() as upstream,
        serving(config(upstream.url), folder, "--workers", str(workers)) as served,
    ):
        begun = time.monotonic()
        fates, found = await play(served.proxy, served.admin, requests, upstream)
        return fates, compare(fates, found), time.monotonic() - begun


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare every counter with the truth.")
    parser.add_argument("--requests", type=int, default=5000, help="how many (default 5000)")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas (default 1,2)")
    options = parser.parse_args()
    failed = False
    for workers in [int(number) for number in options.workers.split(",")]:
        with tempfile.TemporaryDirectory() as folder:
            fates, differences, took_s = asyncio.run(run(options.requests, workers, Path(folder)))
        outcomes = ", ".join(f"{number} {name}" for name, number in Counter(map(_outcome, fates)).most_common())
        print(f"{workers} worker{'s' if workers > 1 else ''}: {len(fates)} requests in {took_s:.1f} s: {outcomes}")
        print("\n".join(differences) or "  every counter and histogram count equals the truth")
        failed = failed or bool(differences)
    sys.exit(failed)


if __name__ == "__main__":
    main()
