"""What the engines are asked to do. Imports nothing but the standard library: vLLM's environment reads it too."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["Figures", "Item", "afresh", "chat_mix", "long_tail", "serve", "shorter"]

_FIRST_ID, _LAST_ID = 100, 49_000
"""Ordinary tokens of the demo model: no control tokens at the start, none that few texts contain."""


class Item(NamedTuple):
    """One request."""

    at: float
    """Seconds after the start."""
    prompt: list[int]
    output: int
    """Tokens to generate; the end-of-text token is ignored."""


class Figures(NamedTuple):
    """What one run took."""

    output_tokens: int
    cpu_s: float
    """CPU seconds of the process, all threads."""
    wall_s: float

    @property
    def per_cpu_s(self) -> float:
        """Output tokens per CPU second."""
        return self.output_tokens / self.cpu_s


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(length)]


def chat_mix(count: int, within_s: float, seed: int = 5) -> list[Item]:
    """`count` requests of 64 to 512 prompt and 16 to 256 output tokens, arriving at random times."""
    rng = random.Random(seed)
    arrivals = sorted(rng.uniform(0, within_s) for _ in range(count))
    arrivals[0] = 0.0
    return [Item(at, _prompt(rng, rng.randint(64, 512)), rng.randint(16, 256)) for at in arrivals]


def long_tail(count: int, longest: int, within_s: float, seed: int = 6) -> list[Item]:
    """`count` requests that arrive at random times: prompts of 16 to 64 tokens, outputs of 16 to `longest`.

    The outputs follow a Pareto law of shape 1: half of them are at most 32 tokens, one in eight is longer than 128.
    The longest of 16 has 3.7 times as many as the mean. In published traces it has 2.4 (Azure, conversations, 2023),
    2.5 (Mooncake, conversations) and 2.5 (LMSYS-Chat-1M, cut at 512): with those there is less to gain.
    """
    rng = random.Random(seed)
    arrivals = sorted(rng.uniform(0, within_s) for _ in range(count))
    return [
        Item(at - arrivals[0], _prompt(rng, rng.randint(16, 64)), min(longest, int(16 * rng.paretovariate(1.0))))
        for at in arrivals
    ]


def afresh(items: Sequence[Item], number: int) -> list[Item]:
    """The same requests with other tokens in their prompts, so that pass `number` finds none of them in a cache."""
    width = _LAST_ID - _FIRST_ID
    shift = 7919 * number - _FIRST_ID
    return [item._replace(prompt=[_FIRST_ID + (token + shift) % width for token in item.prompt]) for item in items]


def shorter(items: Sequence[Item], times: int) -> list[Item]:
    """The same requests with prompts and outputs that are so many times as short."""
    return [
        Item(item.at, item.prompt[: max(1, len(item.prompt) // times)], max(1, item.output // times))
        for item in items
    ]


def serve(run: Callable[[list[Item], str], Any]) -> None:
    """Answer orders from standard input, one JSON line each, until it closes.

    An order is {"items": [[at, prompt, output], ...], "how": "continuous", "static:N" or "padded:N"}; the answer is
    the Figures.
    """
    print("READY", flush=True)
    for line in _lines():
        order = json.loads(line)
        items = [Item(*item) for item in order["items"]]
        cpu, wall = time.process_time(), time.monotonic()
        tokens = run(items, order["how"])
        answer = [tokens, time.process_time() - cpu, time.monotonic() - wall]
        print("RESULT " + json.dumps(answer), flush=True)


def _lines() -> Iterator[str]:
    while line := sys.stdin.readline():
        yield line
