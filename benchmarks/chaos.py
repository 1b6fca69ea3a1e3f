"""Everything goes wrong at once, for as long as you like, and the books must balance afterwards.

    python -m benchmarks.chaos --seconds 600
    python -m benchmarks.chaos --quick

A `trimtab serve` of its own stands before three upstreams that are killed and restarted, drop connections, answer
garbage, errors and too few results, stall and hang, say things behind their answers, answer drop by drop, report
failures inside of good answers and say when to come back; clients leave at random moments and take their time over
their bodies; the configuration is changed and
reloaded every two seconds. Every request carries a number that comes back in its answer. Both ends keep books:

- lost: the upstream wrote its whole good answer, the client stayed, and yet got something else;
- foreign: a client got an answer that is not its own, or more than one;
- doubled: an upstream was asked again although it had answered well (merged calls that were bisected aside).

A call whose upstream was killed within a second of its last byte counts as neither: a reset may take bytes with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import yaml

from benchmarks.bars import Bar, report
from benchmarks.serving import Served, serving
from tests.support.faults import FAULTS
from tests.support.mock_upstream import Behaviour, MockUpstream, Seen, chat_stream
from tests.support.raw_http import Answer, RawClient, request_bytes

__all__ = ["Books", "Outcome", "run", "slope"]

CLIENTS = 24
UPSTREAMS = 3
RELOAD_S = 2.0
SAMPLE_S = 1.0
LEAVES = 0.15
"""Share of the clients that do not wait for their answer."""
SLOW = 0.1
"""Share of the requests that come in two halves, with a pause in between."""
QUIET_S = 1.0
"""How long after its last byte an upstream must live for its answer to count as delivered."""
FORGET_S = 30.0
"""Calls that have not ended by then never will."""
GROWTH_MB = 4.0
"""Growth over the measured time that cannot be told from an allocator's own habits."""


def config(upstreams: list[MockUpstream], turn: int) -> dict[str, Any]:
    """Return the configuration of reload number `turn`: the same pool, something else about it each time."""
    urls = [{"url": up.url, "weight": 1 + (turn + place) % 3} for place, up in enumerate(upstreams)]
    pool = {
        "name": "chaos",
        "upstreams": urls,
        "routing": ("least-work", "round-robin", "prefix")[turn % 3],
        "slo": {"e2e_ms": 60_000 + turn % 7},
        "setpoints": {"max_batch_size": {"initial": 16, "min": 8, "max": 64}, "window_ms": {"initial": 1, "max": 20}},
        "timeouts": {"connect_ms": 1000, "first_byte_ms": 2000, "between_chunks_ms": 1500, "total_ms": 15_000},
        "queue": {"max_requests": 200 + turn % 5, "max_wait_ms": 5_000},
        "health": {"eject_after": 4, "eject_ms": 200, "interval_ms": 250, "timeout_ms": 500},
        "fallback": "spare",
    }
    spare = {"name": "spare", "upstreams": [upstreams[-1].url], "match": {"paths": []}}
    return {"pools": [pool, spare], "state": {"enabled": False}, "log": {"level": "error"}}


class Outcome(NamedTuple):
    """What a run came to."""

    requests: int
    statuses: dict[str, int]
    good: int
    """Answers that were whole and right."""
    unanswered: list[str]
    """Clients that stayed, and whose connection ended without any answer."""
    lost: list[str]
    foreign: list[str]
    doubled: list[str]
    left_over: dict[str, float]
    """What the proxy says is still in flight, leased or queued at the end."""
    reloads: int
    reloads_refused: int
    kills: int
    slope_kb_min: float
    """Growth of resident memory (kB a minute), and the half width of its 95% interval."""
    slope_interval: float
    growth_mb: float
    """Growth over the measured part of the run by that slope."""


class Books:
    """What both ends saw, by request number."""

    def __init__(self) -> None:
        self.requests = self.good = self.kills = 0
        self.statuses: Counter[str] = Counter()
        self.foreign: list[str] = []
        self.unanswered: list[str] = []
        self.unhappy: dict[int, str] = {}
        """Requests whose client stayed and got no good answer."""
        self.served: Counter[int] = Counter()
        """How often each was answered well and whole by an upstream that lived on."""
        self.merged: set[int] = set()

    def answered(self, number: int, kind: str, answer: Answer, rest: bytes) -> None:
        """Write down what a client that stayed got."""
        whole = answer.status == 200 and answer.complete
        self.statuses[str(answer.status) if answer.complete else f"{answer.status} cut"] += 1
        if whole and not rest and _is_error(answer):
            # The upstream's own word for failing, passed on as it came.
            self.unhappy[number] = f"#{number} {kind}: an error with status 200"
            return
        if whole and (rest or not _is_own(number, kind, answer)):
            self.foreign.append(f"#{number} {kind}: {answer.body[:80]!r} {rest[:80]!r}")
        if whole:
            self.good += 1
        else:
            self.unhappy[number] = f"#{number} {kind}: {answer.status}{'' if answer.complete else ' cut'}"

    def collect(self, up: MockUpstream, now: float, killed_at: float | None) -> None:
        """Write down what an upstream has done, and let it forget."""
        kept: list[Seen] = []
        for seen in up.seen:
            if not seen.finished:
                if seen.aborted_at is None and killed_at is None and now - seen.at < FORGET_S:
                    kept.append(seen)
            elif killed_at is None and now - seen.ended_at < QUIET_S:
                kept.append(seen)
            elif killed_at is None or killed_at - seen.ended_at > QUIET_S:
                for number in _numbers(seen):
                    self.served[number] += 1
        up.seen[:] = kept

    def lost(self) -> list[str]:
        """Return the requests whose good answer never reached a client that waited for it."""
        return [said for number, said in self.unhappy.items() if self.served[number]]

    def doubled(self) -> list[str]:
        """Return the requests that were repeated though they had been answered well."""
        return [f"#{n} {times} times" for n, times in self.served.items() if times > 1 and n not in self.merged]


def _numbers(seen: Seen) -> Iterator[int]:
    """Return the numbers of the requests in an upstream call that was answered well."""
    if seen.method != "POST" or seen.status != 200 or seen.how.results is not None or seen.how.body is not None:
        return
    body = seen.json
    for text in body["input"] if isinstance(body.get("input"), list) else [body.get("input", body.get("number"))]:
        yield int(str(text).rpartition(" ")[2])


def _is_error(answer: Answer) -> bool:
    return answer.body.startswith(b'{"error"')


def _is_own(number: int, kind: str, answer: Answer) -> bool:
    if kind == "embed":
        expected = [float(len(f"item {number}")), float(number % 1_000_003)]
        return bool(answer.json["data"][0]["embedding"] == expected)
    if answer.header("x-number") != str(number):
        return False
    if kind == "stream":
        return answer.body == b"".join(chat_stream(4))
    if kind == "relay":
        return bool(answer.json["path"] == f"/elsewhere/{number}")
    return bool(answer.json["object"] == "chat.completion")


class Storm:
    """One run: clients, meddlers and the books they fill."""

    def __init__(self, served: Served, ups: list[MockUpstream], folder: Path, seed: int) -> None:
        self._served = served
        self._ups = ups
        self._folder = folder
        self._rng = random.Random(seed)
        self._stop = asyncio.Event()
        self.books = Books()
        self.reloads = self.refused = 0
        self.memory: list[tuple[float, float]] = []

    async def blow(self, seconds: float) -> None:
        """Let everything go wrong for so long, then let everybody finish."""
        clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        meddlers = [asyncio.create_task(work()) for work in (self._meddle, self._reload, self._watch)]
        await asyncio.sleep(seconds)
        self._stop.set()
        for task in meddlers:
            task.cancel()
        await asyncio.gather(*meddlers, return_exceptions=True)
        for up in self._ups:
            up.default = Behaviour()
        await asyncio.gather(*clients)
        await asyncio.sleep(QUIET_S)
        for up in self._ups:
            self.books.collect(up, time.monotonic() + QUIET_S, None)

    async def _client(self, place: int) -> None:
        """Send one request after the other, over connections that are kept for a while."""
        rng, turn = random.Random(f"{self._rng.random()} {place}"), 0
        while not self._stop.is_set():
            async with RawClient(self._served.port) as client:
                for nth in range(rng.randint(1, 20)):
                    number = turn * CLIENTS + place
                    turn += 1
                    if self._stop.is_set() or not await self._one(client, rng, number, nth):
                        break
                    await asyncio.sleep(rng.random() * 0.08)

    async def _one(self, client: RawClient, rng: random.Random, number: int, nth: int) -> bool:
        """Send one request. Returns whether the connection can carry another."""
        kind = rng.choice(("chat", "stream", "embed", "embed", "relay"))
        path = {"embed": "/v1/embeddings", "relay": f"/elsewhere/{number}"}.get(kind, "/v1/chat/completions")
        body: dict[str, Any] = {"model": "m", "number": number}
        if kind == "embed":
            body = {"model": "m", "input": f"item {number}"}
            self.books.merged.add(number)
        elif kind in ("chat", "stream"):
            body |= {"messages": [{"role": "user", "content": "tell me " * 100}], "stream": kind == "stream"}
        self.books.requests += 1
        try:
            mock = None if kind == "embed" else {"headers": [["X-Number", str(number)]]}
            request = request_bytes("POST", path, body=body, mock=mock)
            if rng.random() < SLOW:
                half = rng.randrange(1, len(request))
                client.send(request[:half])
                await asyncio.sleep(rng.random() * 0.1)
                request = request[half:]
            client.send(request)
            if rng.random() < LEAVES:
                await asyncio.sleep(rng.random() * 0.03)
                client.abort()
                self.books.statuses["left"] += 1
                return False
            answer = await client.answer(timeout=60.0)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.books.unhappy[number] = f"#{number} {kind}, request {nth} of its connection: {error!r}"
            self.books.unanswered.append(self.books.unhappy[number])
            self.books.statuses["no answer"] += 1
            return False
        rest = bytes(client.reader._buffer)  # type: ignore[attr-defined]
        self.books.answered(number, kind, answer, rest)
        return answer.complete and (answer.header("connection") or "").lower() != "close"

    async def _meddle(self) -> None:
        """Upstreams misbehave to everybody for a while, drop idle connections, die and come back."""
        rng = self._rng
        while True:
            await asyncio.sleep(0.1 + rng.random() * 0.3)
            up = rng.choice(self._ups)
            what = rng.random()
            if what < 0.35:
                up.default = Behaviour(**rng.choice(FAULTS))
            elif what < 0.7:
                up.default = Behaviour()
            elif what < 0.85:
                up.close_idle()
            else:
                port = up.port
                self.books.collect(up, time.monotonic(), time.monotonic())
                await up.stop()
                self.books.kills += 1
                await asyncio.sleep(rng.random() * 0.5)
                await up.start(port)
            now = time.monotonic()
            for each in self._ups:
                self.books.collect(each, now, None)

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            self.reloads += 1
            (self._folder / "trimtab.yaml").write_text(yaml.safe_dump(config(self._ups, self.reloads)))
            status, _ = await asyncio.to_thread(ask, self._served.admin, "/admin/v1/reload", "POST")
            self.refused += status != 200

    async def _watch(self) -> None:
        while True:
            self.memory.append((time.monotonic(), resident_kb(self._served.process.pid)))
            await asyncio.sleep(SAMPLE_S)


def ask(admin: str, path: str, method: str = "GET") -> tuple[int, Any]:
    """Ask the admin API; return status and document."""
    with urlopen(Request(admin + path, method=method), timeout=30.0) as response:
        return response.status, json.load(response)


def resident_kb(pid: int) -> float:
    """Return a process's resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise RuntimeError(f"process {pid} says nothing about its memory")


def slope(samples: list[tuple[float, float]], blocks: int = 10) -> tuple[float, float]:
    """Return the slope of memory over time per minute, and the half width of its 95% interval.

    Neighbouring samples are alike, so means of `blocks` equal stretches are fitted and not the samples themselves.
    """
    size = max(1, len(samples) // blocks)
    means = [
        (fmean(t for t, _ in part) / 60.0, fmean(kb for _, kb in part))
        for start in range(0, size * blocks, size)
        if (part := samples[start : start + size])
    ]
    if len(means) < 3:
        return 0.0, float("inf")
    mean_t, mean_kb = fmean(t for t, _ in means), fmean(kb for _, kb in means)
    spread = sum((t - mean_t) ** 2 for t, _ in means)
    rise = sum((t - mean_t) * (kb - mean_kb) for t, kb in means) / spread
    errors = [kb - mean_kb - rise * (t - mean_t) for t, kb in means]
    return rise, 2.3 * stdev(errors) * (len(means) / (len(means) - 2)) ** 0.5 / spread**0.5


async def left_over(admin: str, patience_s: float = 30.0) -> dict[str, float]:
    """Return what is still under way once nothing should be, by kind, summed over the pools."""
    until = time.monotonic() + patience_s
    while True:
        found: Counter[str] = Counter()
        for summary in (await asyncio.to_thread(ask, admin, "/admin/v1/pools"))[1]["pools"]:
            stats = (await asyncio.to_thread(ask, admin, f"/admin/v1/pools/{summary['name']}"))[1]["stats"]
            found["inflight"] += stats["inflight"]
            found["leases"] += stats["leases"]
            found["queued"] += stats["queue"]["requests"]
            found["at upstreams"] += sum(up["inflight"] for up in stats["upstreams"])
        if not any(found.values()) or time.monotonic() > until:
            return dict(found)
        await asyncio.sleep(0.1)


async def run(seconds: float, folder: Path, seed: int = 0) -> Outcome:
    """Blow for `seconds` and balance the books."""
    async with contextlib.AsyncExitStack() as stack:
        ups = [await stack.enter_async_context(MockUpstream()) for _ in range(UPSTREAMS)]
        served = await stack.enter_async_context(serving(config(ups, 0), folder))
        storm = Storm(served, ups, folder, seed)
        await storm.blow(seconds)
        remains = await left_over(served.admin)
    books, measured = storm.books, storm.memory[len(storm.memory) // 3 :]
    rise, interval = slope(measured)
    return Outcome(
        books.requests,
        dict(books.statuses.most_common()),
        books.good,
        books.unanswered,
        books.lost(),
        books.foreign,
        books.doubled(),
        remains,
        storm.reloads,
        storm.refused,
        books.kills,
        rise,
        interval,
        rise * (measured[-1][0] - measured[0][0]) / 60.0 / 1024.0,
    )


def bars(outcome: Outcome) -> list[Bar]:
    """Return what must hold."""
    rising = outcome.slope_kb_min - outcome.slope_interval > 0.0
    return [
        Bar.below("requests without any answer", len(outcome.unanswered), 0),
        Bar.below("lost answers", len(outcome.lost), 0),
        Bar.below("foreign or doubled answers at clients", len(outcome.foreign), 0),
        Bar.below("calls repeated after a good answer", len(outcome.doubled), 0),
        Bar.below("left in flight, leased or queued", sum(outcome.left_over.values()), 0),
        Bar.below("reloads refused", outcome.reloads_refused, 0),
        Bar("growth of memory, MB, beyond noise (<=)", outcome.growth_mb, GROWTH_MB,
            not rising or outcome.growth_mb <= GROWTH_MB),
    ]  # fmt: skip


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Everything goes wrong at once; the books must balance.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default 600)")
    parser.add_argument("--quick", action="store_true", help="30 seconds")
    parser.add_argument("--seed", type=int, default=0, help="of what goes wrong when (default 0)")
    parser.add_argument("--json", help="write the bars to this file")
    options = parser.parse_args()
    seconds = 30.0 if options.quick else options.seconds
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(run(seconds, Path(folder), options.seed))
    statuses = ", ".join(f"{number} {status}" for status, number in outcome.statuses.items())
    print(f"{outcome.requests} requests in {seconds:g} s: {statuses}")
    print(f"{outcome.kills} kills, {outcome.reloads} reloads; memory {outcome.slope_kb_min:+.0f} kB/min "
          f"(95% interval +-{outcome.slope_interval:.0f}) after the first third")  # fmt: skip
    for said in (*outcome.unanswered, *outcome.lost, *outcome.foreign, *outcome.doubled)[:20]:
        print(f"  {said}")
    sys.exit(report(bars(outcome), options.json))


if __name__ == "__main__":
    main()
