from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine import sampler as module
from backend.engine.request import SamplingParams
from backend.engine.sampler import Sampled, Sampler, SamplingState, uniform

VOCAB = 50
GREEDY = SamplingParams(temperature=0.0)


def state(
    params: SamplingParams, prompt: tuple[int, ...] = (1, 2, 3), output: tuple[int, ...] = (), seed: int = 7
) -> SamplingState:
    made = SamplingState(params, list(prompt), seed)
    for token in output:
        made.append(token)
    return made


def sample(logits: torch.Tensor, *states: SamplingState) -> list[Sampled]:
    return Sampler(logits.shape[1]).launch(logits.clone(), list(states)).result()


def tokens(logits: torch.Tensor, *states: SamplingState) -> list[int]:
    return [sampled.token for sampled in sample(logits, *states)]


def row(values: dict[int, float], vocab: int = VOCAB, rest: float = 0.0) -> torch.Tensor:
    logits = torch.full((1, vocab), rest)
    for token, value in values.items():
        logits[0, token] = value
    return logits


def support(logits: torch.Tensor, params: SamplingParams, draws: int = 400) -> Counter[int]:
    """Which tokens come, and how often, over many positions."""
    many = logits.expand(draws, -1)
    return Counter(tokens(many, *(state(params, tuple(range(i % VOCAB)), seed=i) for i in range(draws))))


# -- greedy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(GREEDY, top_p=0.1, top_k=40, min_p=0.5),
        SamplingParams(temperature=1.5, top_k=1, top_p=0.3),
    ],
)
def test_temperature_zero_and_top_k_one_are_argmax_whatever_else_is_set(params: SamplingParams) -> None:
    """FreeToken PR#471: greedy by a temperature of 1e-6."""
    logits = torch.randn(20, VOCAB, generator=torch.Generator().manual_seed(1))
    assert tokens(logits, *(state(params, seed=i) for i in range(20))) == logits.argmax(-1).tolist()


def test_a_greedy_row_between_random_ones_takes_the_argmax_even_of_a_near_tie() -> None:
    """FreeToken PR#471: ties flipped in mixed batches."""
    logits = row({4: 1.0, 9: 1.0 - 1e-6})
    batch = logits.expand(3, -1)
    for seed in range(50):
        hot = state(SamplingParams(), seed=seed)
        mixed = tokens(batch, hot, state(GREEDY, seed=seed), hot)
        assert mixed[1] == 4


# -- noise ---------------------------------------------------------------------------------------------------


def test_equal_seed_and_position_give_the_equal_token_and_different_ones_differ() -> None:
    logits = torch.zeros(1, VOCAB)
    params = SamplingParams()
    assert tokens(logits, state(params, seed=3)) == tokens(logits, state(params, seed=3))
    by_seed = {tokens(logits, state(params, seed=seed))[0] for seed in range(40)}
    by_position = {tokens(logits, state(params, output=(5,) * count))[0] for count in range(40)}
    assert len(by_seed) > 15
    assert len(by_position) > 15


def test_a_seeded_row_is_reproducible_whatever_its_mates_are() -> None:
    """vllm#51226: not reproducible beside a mate without a seed."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0.8)
    alone = tokens(logits[2:3], state(params, seed=11))
    for mates in ([GREEDY] * 5, [SamplingParams()] * 5, [SamplingParams(top_p=0.5), GREEDY] * 2 + [GREEDY]):
        states = [state(p, seed=100 + i) for i, p in enumerate(mates)]
        states.insert(2, state(params, seed=11))
        assert tokens(logits, *states)[2] == alone[0]


def test_the_noise_is_uniform() -> None:
    noise = uniform(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.uint64))
    assert noise.dtype == np.float32
    assert 0 <= noise.min() <= noise.max() < 1
    counts, _ = np.histogram(noise, bins=20, range=(0, 1))
    assert abs(counts - 1000).max() < 150
    along = uniform(np.full(20_000, 5, np.uint64), np.arange(20_000, dtype=np.uint64))
    counts, _ = np.histogram(along, bins=20, range=(0, 1))
    assert abs(counts - 1000).max() < 150
    assert abs(np.corrcoef(along[:-1], along[1:])[0, 1]) < 0.03


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    logits = row({0: math.log(6.0), 1: math.log(3.0), 2: math.log(1.0)}, rest=-math.inf)
    counts = support(logits, SamplingParams(), draws=4000)
    assert set(counts) == {0, 1, 2}
    for token, expected in ((0, 2400), (1, 1200), (2, 400)):
        assert abs(counts[token] - expected) < 150


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 3), (1 - 2.0**-24, 7)])
def test_the_ends_of_the_noise_never_hit_a_token_without_probability(
    noise: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "uniform", lambda seeds, positions: np.full(len(seeds), noise, np.float32))
    logits = row({3: 0.3, 5: 0.2, 7: 0.1}, rest=-math.inf)
    assert tokens(logits, state(SamplingParams())) == [expected]
    assert tokens(logits, state(SamplingParams(top_k=3, temperature=0.9))) == [expected]


def test_temperature_sharpens_and_flattens() -> None:
    logits = row({0: 2.0, 1: 0.0}, rest=-math.inf)
    cold, hot = support(logits, SamplingParams(temperature=0.25)), support(logits, SamplingParams(temperature=10.0))
    assert cold[1] < 5
    assert hot[1] > 120


@pytest.mark.parametrize("temperature", [1e-6, 1e-50])
def test_the_smallest_temperatures_neither_overflow_nor_fail(temperature: float) -> None:
    logits = row({0: 300.0, 1: 299.0}, rest=-300.0)
    assert set(support(logits, SamplingParams(temperature=temperature), draws=50)) == {0}


# -- filters -------------------------------------------------------------------------------------------------


def test_top_k_keeps_the_k_most_probable() -> None:
    logits = row({token: float(token) / 10 for token in range(VOCAB)})
    assert set(support(logits, SamplingParams(top_k=3, temperature=5.0))) == {47, 48, 49}


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = row({0: math.log(5.0), 1: math.log(3.0), 2: math.log(1.5), 3: math.log(0.5)}, rest=-math.inf)
    assert set(support(logits, SamplingParams(top_p=0.5))) == {0}
    assert set(support(logits, SamplingParams(top_p=0.51))) == {0, 1}
    assert set(support(logits, SamplingParams(top_p=0.81))) == {0, 1, 2}
    assert set(support(logits, SamplingParams(top_p=1.0))) == {0, 1, 2, 3}


def test_top_p_counts_within_what_top_k_left() -> None:
    logits = row({0: math.log(4.0), 1: math.log(3.0), 2: math.log(3.0)}, rest=-math.inf)
    # Of the two that top_k leaves, 0 has 4/7 = 57%.
    assert set(support(logits, SamplingParams(top_k=1, top_p=0.9))) == {0}
    assert set(
        support(row({0: math.log(4.0), 1: math.log(3.0), 2: 0.0}, rest=-9.0), SamplingParams(top_k=2, top_p=0.55))
    ) == {0}
    assert set(
        support(row({0: math.log(4.0), 1: math.log(3.0), 2: 0.0}, rest=-9.0), SamplingParams(top_k=2, top_p=0.58))
    ) == {0, 1}


def test_min_p_is_relative_to_the_most_probable() -> None:
    logits = row({0: math.log(10.0), 1: math.log(5.0), 2: math.log(0.9)}, rest=-math.inf)
    assert set(support(logits, SamplingParams(min_p=0.1))) == {0, 1}
    assert set(support(logits, SamplingParams(min_p=1.0))) == {0}


def test_ties_at_a_threshold_stay_or_go_together() -> None:
    logits = row({3: 1.0, 5: 1.0, 8: 1.0}, rest=-9.0)
    assert set(support(logits, SamplingParams(top_k=2))) == {3, 5, 8}


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.97), SamplingParams(top_k=60), SamplingParams(min_p=0.01)])
def test_filters_that_need_more_than_the_first_candidates_are_exact(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(40, 200, generator=torch.Generator().manual_seed(3))
    states = [state(params, seed=i) for i in range(40)]
    exact = tokens(logits, *states)
    monkeypatch.setattr(module, "CANDIDATES", 8)
    assert tokens(logits, *states) == exact


# -- what comes before temperature ---------------------------------------------------------------------------


def test_logit_bias_is_added_and_bans_at_minus_infinity() -> None:
    logits = row({4: 3.0, 9: 2.0})
    assert tokens(logits, state(replace(GREEDY, logit_bias={9: 1.5}))) == [9]
    assert tokens(logits, state(replace(GREEDY, logit_bias={4: -100.0}))) == [9]


def test_presence_and_frequency_count_the_output_only() -> None:
    """vllm-metal PR#69: they were applied to the prompt."""
    logits = row({1: 1.0, 9: 0.9})
    params = replace(GREEDY, presence_penalty=0.5)
    assert tokens(logits, state(params, prompt=(1, 1, 1))) == [1], "1 is in the prompt only"
    assert tokens(logits, state(params, prompt=(), output=(1,))) == [9]


def test_presence_is_once_and_frequency_is_by_count() -> None:
    logits = row({1: 1.0, 9: 0.0}, rest=-5.0)
    output = (1, 1, 1)
    assert tokens(logits, state(replace(GREEDY, presence_penalty=0.9), output=output)) == [1]
    assert tokens(logits, state(replace(GREEDY, frequency_penalty=0.3), output=output)) == [1]
    assert tokens(logits, state(replace(GREEDY, frequency_penalty=0.4), output=output)) == [9]


def test_the_repetition_penalty_covers_the_prompt_and_counts_a_token_once() -> None:
    """lattice#312: compounded per occurrence; vllm-metal PR#69: prompt tokens were missing."""
    logits = row({1: 2.0, 9: 1.1}, rest=-5.0)
    params = replace(GREEDY, repetition_penalty=1.5)
    assert tokens(logits, state(params, prompt=(1,))) == [1], "2 / 1.5 is still above 1.1"
    assert tokens(logits, state(params, prompt=(1, 1, 1), output=(1, 1))) == [1], "not compounded"
    assert tokens(logits, state(replace(GREEDY, repetition_penalty=2.0), prompt=(1,))) == [9]


def test_the_repetition_penalty_makes_negative_logits_smaller() -> None:
    logits = row({1: -1.0, 9: -1.5}, rest=-9.0)
    assert tokens(logits, state(replace(GREEDY, repetition_penalty=2.0), prompt=(1,))) == [9]


def test_a_shorter_rows_penalties_touch_no_token_it_does_not_have() -> None:
    """TGI PR#1765: padding ids were penalised in batches."""
    logits = row({0: 1.0, 9: 0.9}).expand(2, -1)
    params = replace(GREEDY, presence_penalty=2.0, repetition_penalty=2.0)
    long, short = state(params, prompt=(3, 4), output=tuple(range(5, 30))), state(params, prompt=(), output=())
    assert tokens(logits, long, short)[1] == 0, "padding with token 0 would have penalised it"


def test_min_tokens_masks_end_and_stop_tokens_until_enough_came() -> None:
    logits = row({7: 5.0, 8: 4.0, 9: 3.0})
    params = replace(GREEDY, min_tokens=2)
    made = SamplingState(params, [1], 0, end_token_ids=[7, 8])
    for expected in (9, 9, 7):
        (sampled,) = sample(logits, made)
        assert sampled.token == expected
        made.append(sampled.token)


class OnlyEven:
    def allowed(self) -> torch.Tensor | None:
        return torch.arange(VOCAB) % 2 == 0

    def accept(self, token: int) -> bool:
        return token % 2 == 0


def test_a_grammar_masks_what_may_not_come() -> None:
    logits = row({7: 5.0, 8: 4.0})
    made = SamplingState(GREEDY, [1], 0, grammar=OnlyEven())
    assert tokens(logits, made) == [8]


def test_a_row_that_allows_no_token_says_so_and_leaves_the_others_alone() -> None:
    logits = torch.zeros(4, VOCAB)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[3, 5] = torch.nan
    got = tokens(
        logits, state(GREEDY), state(SamplingParams()), state(SamplingParams()), state(SamplingParams(top_p=0.5))
    )
    assert got[0] == got[1] == got[3] == -1
    assert got[2] == tokens(logits[2:3], state(SamplingParams()))[0]


# -- logprobs ------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5))
    expected = torch.log_softmax(logits, -1)[0]
    params = replace(GREEDY, logprobs=3, logit_bias={2: 50.0}, presence_penalty=2.0)
    (sampled,) = sample(logits, state(params))
    assert sampled.token == 2
    assert sampled.logprob is not None
    assert sampled.logprob.logprob == pytest.approx(expected[2].item(), abs=1e-6)
    best = expected.topk(3)
    assert [token for token, _ in sampled.logprob.top] == best.indices.tolist()
    assert [value for _, value in sampled.logprob.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_each_row_gets_as_many_alternatives_as_it_asked_for() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(6))
    wanted = [None, 0, 5, 2]
    results = sample(logits, *(state(replace(GREEDY, logprobs=count)) for count in wanted))
    assert results[0].logprob is None
    for result, count in zip(results[1:], wanted[1:], strict=True):
        assert result.logprob is not None
        assert len(result.logprob.top) == count
        assert result.logprob.token_id == result.token


# -- the whole -----------------------------------------------------------------------------------------------

PARAMS = st.builds(
    SamplingParams,
    min_tokens=st.sampled_from([0, 2, 9]),
    temperature=st.sampled_from([0.0, 1e-3, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05, 0.999999]),
    top_k=st.sampled_from([0, 1, 2, 10, 49, 50, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.0, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5, width=32), max_size=3),
    logprobs=st.sampled_from([None, 0, 2, 5]),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6).map(tuple)


@given(
    rows=st.lists(st.tuples(PARAMS, TOKENS, TOKENS, st.integers(0, 2**64 - 1)), min_size=1, max_size=9),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    salt=st.integers(0, 1000),
    candidates=st.sampled_from([4, 512]),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_samples_as_its_rows_would_alone(
    rows: list[tuple[SamplingParams, tuple[int, ...], tuple[int, ...], int]], scale: float, salt: int, candidates: int
) -> None:
    """aprender PR#2080: the batched path dropped top_p."""
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(salt)) * scale

    def states() -> list[SamplingState]:
        made = []
        for params, prompt, output, seed in rows:
            one = SamplingState(params, prompt, seed, end_token_ids=[0, 3])
            for token in output:
                one.append(token)
            made.append(one)
        return made

    before = module.CANDIDATES
    module.CANDIDATES = candidates
    try:
        together = sample(logits, *states())
        alone = [sample(logits[i : i + 1], one)[0] for i, one in enumerate(states())]
    finally:
        module.CANDIDATES = before
    assert together == alone


def test_a_sampler_that_sees_changing_batches_keeps_no_memory_of_the_last_one() -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(8))
    reused = Sampler(VOCAB)
    states = [state(SamplingParams(temperature=0.5 + i, top_k=i), seed=i) for i in range(5)]
    for subset in ([0, 1, 2, 3, 4], [4, 2], [2, 4], [0], [0, 1, 2, 3, 4]):
        got = [s.token for s in reused.launch(logits[subset].clone(), [states[i] for i in subset]).result()]
        assert got == tokens(logits[subset], *(states[i] for i in subset))
