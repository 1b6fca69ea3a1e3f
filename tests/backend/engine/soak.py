"""A randomised soak of the engine over the fake model: `python -m tests.backend.engine.soak --seconds 300`.

Each round takes a pool that is barely large enough, a policy and a stream of random requests, aborts and faults,
checks the books after every step, and compares every undisturbed request with a run of its own in an empty engine.
"""

from __future__ import annotations

import argparse
import logging
import random
import time

import torch

from backend.engine.errors import EngineOverloaded
from backend.engine.request import FinishReason, GenerationRequest, SamplingParams
from tests.backend.engine.fake import FakeRunner, fake_core, fake_options
from tests.backend.engine.results import Results, run, solo

POLICIES = ("fcfs", "priority", "sjf", "predicted", "prefill-first", "edf", "fair")


def random_request(rng: random.Random, number: int, longest: int) -> GenerationRequest:
    length = rng.randint(1, longest - 1)
    text = rng.randrange(4)
    params = SamplingParams(
        max_tokens=rng.randint(1, longest - length),
        min_tokens=rng.choice([0, 0, 0, 2]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 0, 5]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        seed=rng.randrange(1 << 30),
        stop=rng.choice([(), (), ("a",), ("b", "cd")]),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 2]),
    )
    return GenerationRequest(
        f"r{number}",
        [(text + 5 * i) % 63 for i in range(length)],
        params,
        n=rng.choice([1, 1, 1, 2, 4]),
        class_slack=rng.choice([0.0, 1e-4, 1.0]),
        tenant=rng.choice(["a", "b"]),
        predicted_tokens=rng.choice([None, float(rng.randint(1, longest))]),
        cache_salt=rng.choice(["", "", "salt"]),
    )


def one_round(rng: random.Random) -> tuple[int, int, int]:
    """Run one engine through a few hundred random events; returns requests, tokens and preemptions."""
    block_size, longest = rng.randint(1, 5), rng.randint(4, 40)
    core = fake_core(
        fake_options(
            num_blocks=-(-longest // block_size) + rng.choice([0, 0, 1, 3, 20]),
            block_size=block_size,
            max_num_seqs=rng.choice([4, 8, 16]),
            max_num_batched_tokens=rng.choice([16, 24, 64]),
            prefill_chunk=rng.choice([1, 3, 8, 64]),
            policy=rng.choice(POLICIES),
            mix=rng.random() < 0.7,
            prefix_cache=rng.random() < 0.8,
            admission=rng.choice(["auto", "optimistic", "predicted"]),
            max_waiting=30,
            offload_blocks=rng.choice([0, 0, 4, 100]),
        )
    )
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    results, sent, disturbed = Results(), {}, set()
    overlap = rng.random() < 0.5
    for number in range(rng.randint(5, 60)):
        one = random_request(rng, number, longest)
        try:
            core.add(one)
            sent[one.id] = one
        except EngineOverloaded:
            pass  # the bound is there to be met
        for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
            core.launch()
            if overlap:
                results.add(core.drain())
            core.collect()
            core.check_integrity()
        if sent and rng.random() < 0.1:
            victim = rng.choice(sorted(sent))
            disturbed.add(victim)
            results.add(core.abort(victim))
            core.check_integrity()
        if rng.random() < 0.02:
            runner.fail_next = RuntimeError("a fault")
            results.add(core.step())
            runner.fail_next = None
            results.add(core.step())
    run(core, results, overlap=overlap)
    for name, one in sent.items():
        outcomes = [results[name, index] for index in range(one.n)]
        assert all(outcome.finish is not None for outcome in outcomes), name
        if name in disturbed or any(outcome.finish is FinishReason.ERROR for outcome in outcomes):
            continue
        alone = solo(one)
        assert outcomes == [alone[name, index] for index in range(one.n)], name
    stats = core.stats()
    assert stats.stalls == 0
    return len(sent), stats.generation_tokens, stats.preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=None, help="repeat one round only")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    if given.seed is not None:
        print(one_round(random.Random(given.seed)))
        return
    seeds = random.Random()
    end = time.monotonic() + given.seconds
    rounds = requests = tokens = preemptions = 0
    while time.monotonic() < end:
        seed = seeds.randrange(1 << 32)
        try:
            totals = one_round(random.Random(seed))
        except BaseException:
            print(f"failed with --seed {seed}")
            raise
        rounds, requests = rounds + 1, requests + totals[0]
        tokens, preemptions = tokens + totals[1], preemptions + totals[2]
    print(f"{rounds} rounds, {requests} requests, {tokens} tokens, {preemptions} preemptions: no difference, no leak")


if __name__ == "__main__":
    main()
