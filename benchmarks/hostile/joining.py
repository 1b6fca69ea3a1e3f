"""Whether any part of a merged answer ever reaches somebody else's caller.

Random requests, many of them ragged, nested, empty, mixed or of claims without data, are merged in every format at
servers that read loosely, answer wrongly, fail, and quote what they were asked. Every answer is held against the one
that its request gets alone: its results have to be those, or it is an error; and nothing that another caller wrote
stands anywhere in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections import Counter
from typing import Any

from benchmarks.bars import Bar
from benchmarks.hostile.joining_servers import MOODS, Mood, serve
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient
from tests.support.scripted import Asked, Scripted

__all__ = ["measure"]

_PARTS, _QUICK_PARTS = 50_000, 5_000
_CALLERS = 24
_REMEMBERED = 96
_FORMATS = {
    "/v1/embeddings": "openai",
    "/v1/completions": "openai",
    "/api/embed": "ollama",
    "/embed": "tei",
    "/v1/rerank": "rerank",
    "/v1/models/m:predict": "tfserving",
    "/v2/models/m/infer": "kserve",
}
_RESULTS = ("data", "choices", "embeddings", "results", "predictions", "outputs")
_CONFIG: dict[str, Any] = {
    "dispatch": "merge",
    "setpoints": {"max_batch_size": {"initial": 64, "max": 64}, "window_ms": {"initial": 3, "max": 10}},
    "law": "fixed",
    "depth": 8,
    "retries": {"max": 0},
    "health": {"eject_after": 1000},
    "check_merged_every": 0,
}
_HUGE = (2**31, 2**63 - 1, 10**17, 2**64 - 1)


def measure(quick: bool) -> list[Bar]:
    """Send the requests; return how many parts crossed."""
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    counts = asyncio.run(_all(_QUICK_PARTS if quick else _PARTS))
    print("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())), flush=True)
    return [
        Bar.below(f"parts of merged calls that crossed, of {counts['sent']:,}", counts["crossed"], 0),
        Bar.above("requests sent for each call upstream, servers that answer well", _company(counts), 2.0),
    ]


def _company(counts: Counter[str]) -> float:
    return counts["sent to good ones"] / max(1, counts["calls of good ones"])


async def _all(parts: int) -> Counter[str]:
    rng, counts = random.Random(13), Counter[str]()
    pairs = [(path, mood) for path in _FORMATS for mood in MOODS]
    for path, mood in pairs:
        await _one(path, mood, -(-parts // len(pairs)), rng, counts)
    return counts


async def _one(path: str, mood: Mood, parts: int, rng: random.Random, counts: Counter[str]) -> None:
    """Send `parts` requests to one path of a server in one mood, and look at each answer."""
    numbers = iter(range(1 << 30))
    async with Scripted(lambda asked: serve(path, mood, asked, next(numbers))) as up:
        for start in range(0, parts, _REMEMBERED):
            # What cannot be divided is left alone for a minute, so a proxy that has seen much of it merges nothing.
            async with Stack(up.url, wire=_FORMATS[path], **_CONFIG) as stack:
                await _crowds(stack, path, mood, range(start, min(parts, start + _REMEMBERED)), rng, counts)
        if mood is Mood.FLATTENS:
            counts["sent to good ones"] += parts
            counts["calls of good ones"] += len(up.asked)
        counts["sent"] += parts


async def _crowds(
    stack: Stack, path: str, mood: Mood, numbers: range, rng: random.Random, counts: Counter[str]
) -> None:
    """Send requests, as many at once as there are callers."""
    async with contextlib.AsyncExitStack() as open_now:
        clients = [await open_now.enter_async_context(RawClient(stack.port)) for _ in range(_CALLERS)]
        for start in numbers[::_CALLERS]:
            marks = [f"{number}q" for number in range(start, min(numbers.stop, start + _CALLERS))]
            bodies = [_request(path, mark, rng) for mark in marks]
            answers = await asyncio.gather(
                *[
                    client.ask("POST", path, {"X-Request-Id": f"id-{mark}"}, body=json.dumps(body))
                    for client, mark, body in zip(clients, marks, bodies, strict=False)
                ]
            )
            _judge(path, mood, marks, bodies, answers, counts)


def _judge(
    path: str, mood: Mood, marks: list[str], bodies: list[Any], answers: list[Answer], counts: Counter[str]
) -> None:
    """Count the answers that are not what their request gets alone, or hold what another caller wrote."""
    for number, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        request = Asked("POST", path, (), json.dumps(body).encode())
        alone = serve(path, mood, request, 1)
        crossed = False
        if answer.status == 200:
            crossed = alone.status != 200 or _results(answer.json) != _results(json.loads(json.dumps(alone.body)))
            counts["answered"] += 1
        else:
            counts["refused"] += 1
        told = answer.body.decode() + repr(answer.headers)
        foreign = [mark for n, mark in enumerate(marks) if n != number and _holds(told, mark)]
        if crossed or foreign:
            counts["crossed"] += 1
            if counts["crossed"] <= 5:
                print(f"  crossed at {path}: {body!r:.200} got {told!r:.400}, alone {alone.body!r:.200}", flush=True)


def _holds(text: str, mark: str) -> bool:
    """Whether `mark` stands in `text`, and not as the end of a longer one."""
    at = text.find(mark)
    while at >= 0:
        if at == 0 or not text[at - 1].isdigit():
            return True
        at = text.find(mark, at + 1)
    return False


def _results(answer: Any) -> Any:
    """Return what an answer is about, without what differs from time to time."""
    if isinstance(answer, dict):
        found = [answer[name] for name in _RESULTS if name in answer]
        return _ordered(found[0] if found else answer)
    return answer


def _ordered(results: Any) -> Any:
    """Put indexed results in the order of their index."""
    if isinstance(results, list) and results and all(isinstance(r, dict) and "index" in r for r in results):
        return sorted(results, key=lambda result: result["index"])
    return results


# -- requests ----------------------------------------------------------------------------------------------------


def _request(path: str, mark: str, rng: random.Random) -> Any:
    """Make a request in which `mark` stands; about a third of them are odd."""
    odd = rng.random() < 0.35
    if path.endswith("embeddings"):
        return {"model": "m", "input": _texts(mark, rng, odd)}
    if path.endswith("completions"):
        return {"model": "m", "prompt": _texts(mark, rng, odd), **(_claim(rng, "max_tokens", "n") if odd else {})}
    if path.endswith("/api/embed"):
        return {"model": "m", "input": _texts(mark, rng, odd)}
    if path.endswith("/embed"):
        return {"inputs": _texts(mark, rng, odd)}
    if path.endswith("rerank"):
        return {"model": "m", "query": "q", "documents": _texts(mark, rng, odd, bare=False)}
    return _rows(mark, rng, odd) if path.endswith("predict") else _tensor(mark, rng, odd)


def _claim(rng: random.Random, *names: str) -> dict[str, Any]:
    return {rng.choice(names): rng.choice([*_HUGE, 1e300, -1, 0, 1.5, "9", None])}


def _texts(mark: str, rng: random.Random, odd: bool, *, bare: bool = True) -> Any:
    texts = [f"{mark} {n}" for n in range(rng.randint(1, 3))]
    if not odd:
        return texts[0] if bare and rng.random() < 0.5 else texts
    return rng.choice(
        [
            [], "", [""], [*texts, ""], [*texts, 3], [texts], [*texts, None], [*texts, [1, 2]], [[1, 2], [3]],
            [1, 2, 3], [-1, 2], [[], [1]], [1.0, 2], [True, False], {"text": mark}, [{"text": mark}, mark], None, 7,
            [rng.choice(_HUGE), 1], [[1], [rng.choice(_HUGE)]],
        ]
    )  # fmt: skip


def _row(rng: random.Random, width: int) -> list[Any]:
    return [rng.randint(0, 10**6) + 0.5 for _ in range(width)]


def _rows(mark: str, rng: random.Random, odd: bool) -> Any:
    rows: list[Any] = [_row(rng, 3) for _ in range(rng.randint(1, 3))]
    if odd and rng.random() < 0.5:
        return {"instances": [rng.choice([[], [*rows[0], *rows[0]]]), *rows[1:]]}
    if not odd:
        return rng.choice([{"instances": rows}, {"inputs": rows}, {"inputs": {"x": rows, "y": [mark] * len(rows)}}])
    broken = rng.choice(
        [
            [], [[]], [*rows, []], [*rows, [1]], [*rows, [1, 2, 3, 4]], [*rows, 1], [rows], [*rows, [1, None, 2]],
            [*rows, [1, True, 2]], [*rows, [1, [2], 3]], [{"x": 1}, {"y": 1}], [{"b64": 1}], [None], {}, 3,
        ]
    )  # fmt: skip
    return rng.choice([{"instances": broken}, {"inputs": broken}, {"inputs": {"x": rows, "y": broken}}])


def _tensor(mark: str, rng: random.Random, odd: bool) -> Any:
    width, count = 3, rng.randint(1, 3)
    rows = [_row(rng, width) for _ in range(count)]
    flat = [value for row in rows for value in row]
    tensor = {"name": "x", "datatype": "FP32", "shape": [count, width], "data": rng.choice([rows, flat])}
    if odd and rng.random() < 0.5:
        # One that is too long and one that is too short make up for each other where only the total is looked at.
        tensor["data"] = [rng.choice([[], [*rows[0], *rows[0]]]), *rows[1:]]
    elif odd:
        huge = rng.choice(_HUGE)
        tensor |= rng.choice(
            [
                {"data": [flat]}, {"data": [*rows, []]}, {"data": [[*rows[0], *rows[0]], *rows[1:]]}, {"data": [[]]},
                {"data": []}, {"shape": [huge, 0], "data": []}, {"shape": [0, huge], "data": []},
                {"shape": [count, huge]}, {"shape": [-1, width]}, {"shape": [count * width]},
                {"data": [*flat[:-1], None]}, {"data": [*flat[:-1], True]}, {"data": [*flat[:-1], [flat[-1]]]},
                {"datatype": "INT32"}, {"datatype": "BYTES"}, {"shape": [1, count * width], "data": [flat]},
                {"shape": [count, 1, width], "data": rows}, {"data": [rows]}, {"shape": []},
            ]
        )  # fmt: skip
    return {"inputs": [tensor], **({"id": mark} if rng.random() < 0.5 else {})}
