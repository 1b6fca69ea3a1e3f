"""What would a change have done to the last minutes' traffic? Answered by the simulator, in another process.

The upstream is fitted from the very observations: service time by batch size where the proxy makes the batches,
token times by concurrency where the upstream does. The same requests are then played twice on the same luck, under
the settings in force and under the proposed ones. It is an estimate: good for the direction and rough size of an
effect, not for its last digit.

`python -m controller.simulator.whatif` reads a question as JSON from stdin and writes the answer to stdout.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO

__all__ = ["MIN_REQUESTS", "Question", "Settings", "TooLittle", "answer", "ask", "frame"]

MIN_REQUESTS = 50
_PATIENCE_S = 30.0
_SEED = 1
_USUAL = frozenset({Result.OK, Result.TIMEOUT})


class TooLittle(Exception):
    """There is not enough traffic to learn from. The text says what is missing."""


class Settings(NamedTuple):
    """What a pool runs under, JSON-ready."""

    slo: dict[str, Any]
    """Fields of `SLO`."""
    max_batch_size: int
    window_ms: float
    pins: dict[str, float]
    law: str
    options: dict[str, Any]


class Question(NamedTuple):
    """Everything the simulation needs."""

    mode: Literal["merge", "gate"]
    bounds: dict[str, Any]
    slots: int
    requests: list[tuple[float, int, int]]
    """(arrival from the start, prompt tokens, output tokens)."""
    calls: list[tuple[int, float]]
    """merge: (batch size, service seconds)."""
    tokens: list[tuple[int, float]]
    """gate: (sequences in flight, seconds per output token)."""
    prefill_token_s: float
    now: Settings
    then: Settings


def frame(
    recent: Sequence[Observation],
    mode: Literal["merge", "gate"],
    bounds: Mapping[str, Any],
    slots: int,
    now: Settings,
    then: Settings,
) -> Question:
    """Reduce the last requests to a question. Raises TooLittle."""
    offered = [obs for obs in recent if obs.result is not Result.CANCELLED]
    served = [obs for obs in offered if obs.result in _USUAL and obs.service_s is not None]
    if len(served) < MIN_REQUESTS:
        raise TooLittle(f"{len(served)} finished requests are known; {MIN_REQUESTS} are needed")
    start = min(obs.arrival for obs in offered)
    outputs = [obs.output_tokens for obs in served if obs.output_tokens]
    usual_output = round(median(outputs)) if outputs else 1
    requests = [
        (obs.arrival - start, max(1, obs.prompt_tokens), obs.output_tokens or usual_output)
        for obs in sorted(offered, key=lambda obs: obs.arrival)
    ]
    calls = [(obs.batch, obs.service_s) for obs in served if obs.service_s is not None]
    tokens = [(obs.batch, _token_s(obs, usual_output)) for obs in served]
    prefill = [_prefill_token_s(obs) for obs in served if obs.first_byte is not None and obs.streamed]
    return Question(
        mode, dict(bounds), slots, requests, calls, tokens, median(prefill) if prefill else 0.0, now, then
    )


def _token_s(obs: Observation, usual_output: int) -> float:
    """Return seconds per output token; of an answer that came in one piece, its service time spread over it."""
    if obs.tpot_s is not None and obs.tpot_s > 0.0:
        return obs.tpot_s
    assert obs.service_s is not None
    return max(1e-6, obs.service_s / (obs.output_tokens or usual_output))


def _prefill_token_s(obs: Observation) -> float:
    assert obs.dispatched is not None
    assert obs.first_byte is not None
    return max(0.0, obs.first_byte - obs.dispatched - (obs.tpot_s or 0.0)) / max(1, obs.prompt_tokens)


async def ask(question: Question) -> dict[str, Any]:
    """Play a question in another process. Raises RuntimeError when it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controller.simulator.whatif",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_PATIENCE_S):
            out, err = await process.communicate(json.dumps(question).encode())
    except TimeoutError:
        raise RuntimeError(f"the simulation took longer than {_PATIENCE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the simulation failed: {err.decode(errors='replace').strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(out)
    return found


def answer(question: Question) -> dict[str, Any]:
    """Play the requests under both settings; return figures of both, JSON-ready."""
    return {"now": _figures(question, question.now), "then": _figures(question, question.then)}


def _figures(question: Question, settings: Settings) -> dict[str, Any]:
    from controller.simulator.arrivals import Request
    from controller.simulator.gate import simulate_gate
    from controller.simulator.merge import simulate_merge
    from controller.simulator.plants import TablePlant

    controller = PoolController(
        "what-if",
        slo=SLO(**settings.slo),
        setpoints=Setpoints(settings.max_batch_size, settings.window_ms),
        bounds=Bounds(**question.bounds),
        law=settings.law,
        law_options=settings.options,
        mode=question.mode,
        now=0.0,
    )
    if settings.pins:
        controller.pin(settings.pins, 0.0, "what-if")
    requests = [Request(arrival, prompt, output) for arrival, prompt, output in question.requests]
    horizon_s = max(1.0, requests[-1].arrival + 1e-3)
    if question.mode == "merge":
        plant = TablePlant.fit(question.calls)
        record = simulate_merge(requests, controller, plant, horizon_s=horizon_s, seed=_SEED, slots=question.slots)
    else:
        record = simulate_gate(requests, controller, _engine(question), horizon_s=horizon_s, seed=_SEED)
    figures = record.figures()._asdict()
    sizes = [size for _, size, _ in record.setpoints] or [settings.max_batch_size]
    figures["mean_batch_limit"] = fmean(sizes)
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in figures.items()}


def _engine(question: Question) -> Any:
    """Return an engine whose tokens take as long as was seen at each concurrency."""
    from controller.simulator.engine import EnginePlant
    from controller.simulator.plants import TablePlant
    from controller.simulator.profile import Profile

    table = TablePlant.fit(question.tokens)
    decode_ms = tuple(1000.0 * seconds for seconds in table.seconds)
    profile = Profile(batches=table.sizes, prefill_512_ms=(0.0,) * len(decode_ms), decode_ms=decode_ms)
    return EnginePlant(
        profile=profile, prefill_token_s=question.prefill_token_s, kv_tokens=10**9, max_num_seqs=65_536
    )


def main() -> None:
    """Answer one question."""
    data = json.load(sys.stdin)
    question = Question(*data)
    settled = question._replace(now=Settings(*question.now), then=Settings(*question.then))
    json.dump(answer(settled), sys.stdout)


if __name__ == "__main__":
    main()
