from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend.engine.core import EngineCore, EngineFault
from backend.engine.errors import EngineOverloaded, RequestRefused
from backend.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams, TokenLogprob, Usage
from backend.engine.sampler import Sampler, SamplingState
from policies.base import Job
from policies.fcfs import FCFS
from tests.backend.engine.fake import (
    EOS,
    VOCAB,
    FakeDecoder,
    FakeRunner,
    fake_core,
    fake_options,
    greedy,
    logits_after,
)

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@dataclass
class Result:
    """Everything that came for one choice."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None
    error: str | None = None


class Results(defaultdict[tuple[str, int], Result]):
    """Collects deltas and checks what holds for all of them."""

    def __init__(self) -> None:
        super().__init__(Result)
        self.usage: dict[str, Usage] = {}

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            result = self[delta.request_id, delta.index]
            assert result.finish is None, "a delta after the finish"
            assert delta.request_id not in self.usage, "a delta after the usage"
            result.token_ids += delta.token_ids
            result.text += delta.text
            result.logprobs += delta.logprobs
            result.finish, result.stop, result.error = delta.finish_reason, delta.stop_reason, delta.error
            if delta.usage is not None:
                self.usage[delta.request_id] = delta.usage


def run(core: EngineCore, results: Results | None = None, *, overlap: bool = False) -> Results:
    results = Results() if results is None else results
    for _ in range(20_000):
        if not core.has_work:
            break
        core.launch()
        if overlap:
            results.add(core.drain())  # the step before
        core.collect()
        if not overlap or not core.has_work:
            results.add(core.drain())
        core.check_integrity()
    results.add(core.drain())
    assert not core.has_work
    stats = core.stats()
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    return results


def request(name: str, prompt: list[int], params: SamplingParams = GREEDY, **options: object) -> GenerationRequest:
    return GenerationRequest(name, prompt, params, **options)  # type: ignore[arg-type]


def solo(one: GenerationRequest) -> Results:
    """The request alone, in ample room, without a cache or chunks."""
    core = fake_core(fake_options(num_blocks=256, max_num_batched_tokens=512, prefix_cache=False))
    core.add(one)
    return run(core)


# -- the life of a request -----------------------------------------------------------------------------------


def test_a_request_yields_one_delta_per_token_and_ends_with_usage() -> None:
    core = fake_core()
    core.add(request("a", [1, 2, 3]))
    results = run(core)
    result = results["a", 0]
    assert result.token_ids == greedy([1, 2, 3], 6)
    assert result.text == FakeDecoder().decode(result.token_ids)
    assert result.finish is FinishReason.LENGTH
    assert results.usage["a"] == Usage(prompt_tokens=3, completion_tokens=6, cached_tokens=0)


def test_the_text_is_the_decoded_output() -> None:
    core = fake_core()
    for i in range(8):
        core.add(request(f"r{i}", [i, 2 * i], replace(GREEDY, max_tokens=40)))
    results = run(core)
    for i in range(8):
        assert results[f"r{i}", 0].text == FakeDecoder().decode(results[f"r{i}", 0].token_ids)


def first_with(token: int, after: int = 0) -> tuple[list[int], int]:
    """A prompt whose greedy output has `token` for the first time at some place >= `after`, and that place."""
    for start in range(400):
        prompt = [start % 60, start // 60]
        output = greedy(prompt, 30)
        if token in output and output.index(token) >= after:
            return prompt, output.index(token)
    raise AssertionError("no such prompt")


def test_an_eos_token_ends_the_text_and_is_counted_but_not_shown() -> None:
    prompt, at = first_with(EOS, after=2)
    core = fake_core()
    core.add(request("a", prompt, SamplingParams(max_tokens=30, temperature=0.0, skip_special_tokens=False)))
    results = run(core)
    assert results["a", 0].finish is FinishReason.STOP
    assert results["a", 0].stop is None
    assert results["a", 0].token_ids[-1] == EOS
    assert "</s>" not in results["a", 0].text
    assert results.usage["a"].completion_tokens == at + 1


def test_every_source_of_end_tokens_counts() -> None:
    """vllm#4180, vllm PR#4182, mlx-vlm PR#2112: end tokens taken from one source only."""
    prompt, at = first_with(20, after=2)
    core = fake_core(eos=(EOS, 20))
    core.add(request("a", prompt, SamplingParams(max_tokens=30, temperature=0.0)))
    assert len(run(core)["a", 0].token_ids) == at + 1


def test_ignore_eos_ignores_all_of_them_and_keeps_the_stop_tokens() -> None:
    """vllm#4589: the union of the sources broke ignore_eos."""
    prompt, at = first_with(20, after=2)
    core = fake_core(eos=range(64))
    core.add(request("a", prompt, replace(GREEDY, max_tokens=30, stop_token_ids=(20,))))
    result = run(core)["a", 0]
    assert len(result.token_ids) == at + 1
    assert (result.finish, result.stop) == (FinishReason.STOP, 20)


def test_the_length_limit_is_max_tokens_or_what_the_model_has_left() -> None:
    core = fake_core(fake_options(max_model_len=10))
    core.add(request("a", [1] * 7, replace(GREEDY, max_tokens=100)))
    core.add(request("b", [1] * 9, replace(GREEDY, max_tokens=100)))
    results = run(core)
    assert (len(results["a", 0].token_ids), results["a", 0].finish) == (3, FinishReason.LENGTH)
    assert (len(results["b", 0].token_ids), results["b", 0].finish) == (1, FinishReason.LENGTH)


def test_stop_strings_end_a_choice_across_token_boundaries() -> None:
    """vllm#3574, SwiftLM#126, mlx-knife#68: a stop string over two tokens was missed or leaked."""
    text = FakeDecoder().decode(greedy([1, 2], 12))
    stop = text[4:7]
    core = fake_core()
    core.add(request("a", [1, 2], replace(GREEDY, max_tokens=12, stop=(stop,))))
    core.add(request("b", [1, 2], replace(GREEDY, max_tokens=12, stop=(stop,), include_stop=True)))
    results = run(core)
    assert results["a", 0].text == text[: text.index(stop)]
    assert (results["a", 0].finish, results["a", 0].stop) == (FinishReason.STOP, stop)
    assert results["b", 0].text == text[: text.index(stop) + 3]


def test_a_held_back_tail_is_flushed_at_the_length_limit() -> None:
    """smg PR#2203, vmlx-swift PR#109: what is held back is text, unless a stop string cut it off."""
    text = FakeDecoder().decode(greedy([1, 2], 6))
    core = fake_core()
    core.add(request("a", [1, 2], replace(GREEDY, stop=(text[4:] + "!",))))
    assert run(core)["a", 0].text == text


def test_the_last_real_token_is_not_lost_when_eos_follows_a_partial_stop_match() -> None:
    """koboldcpp PR#1031."""
    prompt, at = first_with(EOS, after=2)
    text = FakeDecoder().decode(greedy(prompt, at))
    core = fake_core()
    core.add(request("a", prompt, SamplingParams(max_tokens=30, temperature=0.0, stop=(text[-1] + "!",))))
    assert run(core)["a", 0].text == text


def test_min_tokens_holds_off_every_kind_of_end() -> None:
    core = fake_core(eos=range(0, 64, 2))
    core.add(request("a", [1, 2], SamplingParams(max_tokens=20, min_tokens=9, temperature=1.0, seed=1)))
    result = run(core)["a", 0]
    assert len(result.token_ids) > 9
    assert all(token % 2 for token in result.token_ids[:9])


def test_n_choices_have_indices_seeds_and_one_usage_of_their_own() -> None:
    """vllm#10852: n identical samples when a seed was set."""
    params = SamplingParams(max_tokens=8, seed=5, ignore_eos=True)
    core = fake_core()
    core.add(request("a", [1, 2, 3, 4, 5], params, n=3))
    results = run(core)
    outputs = [results["a", index].token_ids for index in range(3)]
    assert len({tuple(output) for output in outputs}) == 3
    assert results.usage["a"] == Usage(prompt_tokens=5, completion_tokens=24)
    for index in range(3):
        alone = solo(request("b", [1, 2, 3, 4, 5], replace(params, seed=5 + index)))
        assert alone["b", 0].token_ids == outputs[index], "choice i is what seed + i gives"


def test_noise_and_penalties_follow_the_position() -> None:
    """The same tokens as a sampler that is fed by hand."""
    params = SamplingParams(max_tokens=12, temperature=1.2, seed=3, frequency_penalty=1.0, top_p=0.9, ignore_eos=True)
    prompt = [4, 5, 6]
    state, tokens = SamplingState(params, prompt, 3), list(prompt)
    for _ in range(12):
        (sampled,) = Sampler(VOCAB).sample(torch.from_numpy(logits_after(tokens)).unsqueeze(0), [state])
        state.append(sampled.token)
        tokens.append(sampled.token)
    core = fake_core()
    core.add(request("a", prompt, params))
    assert run(core)["a", 0].token_ids == tokens[3:]


def test_n_greedy_choices_are_identical() -> None:
    core = fake_core()
    core.add(request("a", [1, 2, 3], n=4))
    results = run(core)
    assert all(results["a", index] == results["a", 0] for index in range(4))


def test_unseeded_requests_differ_from_one_another() -> None:
    core = fake_core()
    for name in "ab":
        core.add(request(name, [1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True)))
    results = run(core)
    assert results["a", 0].token_ids != results["b", 0].token_ids


def test_cached_tokens_are_exactly_those_that_were_not_computed() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    core.add(request("a", list(range(11)), replace(GREEDY, max_tokens=1)))
    run(core)
    before = runner.tokens_computed
    core.add(request("b", list(range(11)), replace(GREEDY, max_tokens=1)))
    results = run(core)
    assert results.usage["b"].cached_tokens == 8
    assert runner.tokens_computed - before == 11 - 8
    assert (core.stats().prefix_queries, core.stats().prefix_hits) == (22, 8)


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "n", "param", "match"),
    [
        ([], GREEDY, 1, "prompt", "no tokens"),
        ([1, 64], GREEDY, 1, "prompt", "outside"),
        ([-1], GREEDY, 1, "prompt", "outside"),
        ([1] * 64, GREEDY, 1, "prompt", "KV cache holds 64"),
        ([1] * 500, GREEDY, 1, "prompt", "500 tokens"),
        ([1], replace(GREEDY, max_tokens=0), 1, "max_tokens", "at least 1"),
        ([1], GREEDY, 9, "n", "between 1 and 8"),
        ([1], GREEDY, 0, "n", "between 1 and 8"),
        ([1], replace(GREEDY, logit_bias={64: 1.0}), 1, "logit_bias", "outside"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(
    prompt: list[int], params: SamplingParams, n: int, param: str, match: str
) -> None:
    """vllm#39734, sglang#28530: it waited for ever and blocked the queue."""
    core = fake_core(fake_options(num_blocks=16))
    with pytest.raises(RequestRefused, match=match) as refusal:
        core.add(request("a", prompt, params, n=n))
    assert refusal.value.param == param
    assert not core.has_work


def test_the_longest_prompt_that_fits_is_served() -> None:
    """vllm#23683: a prompt of exactly the limit ended the runner; vllm#28172: lengths are counted in ids."""
    core = fake_core(fake_options(num_blocks=16))
    core.add(request("a", [1] * 63))
    assert len(run(core)["a", 0].token_ids) == 1


def test_under_guaranteed_admission_what_could_outgrow_the_pool_is_refused() -> None:
    core = fake_core(fake_options(num_blocks=4, admission="guaranteed"))
    core.add(request("a", [1] * 4, replace(GREEDY, max_tokens=5), n=3))
    with pytest.raises(RequestRefused, match="5 KV blocks and there are 4"):
        core.add(request("b", [1] * 4, replace(GREEDY, max_tokens=6), n=2))
    run(core)


def test_a_full_line_turns_newcomers_away() -> None:
    """sglang PR#33940: the refusal was routed nowhere and the client hung."""
    core = fake_core(fake_options(max_waiting=2))
    for name in "ab":
        core.add(request(name, [1]))
    with pytest.raises(EngineOverloaded):
        core.add(request("c", [1]))
    assert len(run(core)) == 2


def test_an_id_that_is_running_is_refused_and_may_be_used_again_afterwards() -> None:
    core = fake_core()
    core.add(request("a", [1]))
    with pytest.raises(RequestRefused, match="already running"):
        core.add(request("a", [2]))
    run(core)
    core.add(request("a", [2]))
    assert run(core)["a", 0].token_ids == greedy([2], 6)


# -- aborts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(9))
def test_aborting_is_legal_in_every_state_and_every_choice_ends_once(steps: int) -> None:
    """LMCache#3688, vllm#18485: an abort before anything was scheduled ended the engine."""
    core = fake_core(fake_options(prefill_chunk=3, max_num_seqs=4))
    core.add(request("a", list(range(8)), replace(GREEDY, max_tokens=4), n=2))
    core.add(request("b", list(range(10)), replace(GREEDY, max_tokens=4)))
    core.add(request("c", list(range(5)), replace(GREEDY, max_tokens=4), n=3))
    results = Results()
    for _ in range(steps):
        results.add(core.step())
    for name in "abc":
        results.add(core.abort(name))
        core.check_integrity()
        assert core.abort(name) == []
    assert not core.has_work
    assert {key: result.finish for key, result in results.items() if result.finish is None} == {}
    assert set(results) == {("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)}
    assert set(results.usage) == {"a", "b", "c"}
    assert core.stats().owned_blocks == 0
    assert core.stats().requests_finished == 3


def test_aborting_an_unknown_request_does_nothing() -> None:
    """vllm PR#25067: an abort that came after the finish freed the blocks twice."""
    assert fake_core().abort("nobody") == []


def test_aborting_one_choices_request_leaves_its_batch_mates_alone() -> None:
    core = fake_core()
    for i in range(4):
        core.add(request(f"r{i}", [i, i]))
    results = Results()
    results.add(core.step())
    results.add(core.abort("r1"))
    run(core, results)
    for i in (0, 2, 3):
        assert results[f"r{i}", 0].token_ids == greedy([i, i], 6)


def test_text_that_decides_nothing_is_made_only_when_it_is_read() -> None:
    decoder = FakeDecoder()
    core = fake_core(decoder=decoder)
    core.add(request("plain", [1, 2]))
    before = decoder.calls
    core.launch()
    core.collect()
    assert decoder.calls == before
    core.add(request("stops", [1, 2], replace(GREEDY, stop=("~",))))
    before = decoder.calls
    core.launch()
    core.collect()
    assert decoder.calls > before
    results = Results()
    results.add(core.drain())
    run(core, results)
    assert results["plain", 0].text == results["stops", 0].text


def test_an_abort_tells_first_what_came_before_it() -> None:
    core = fake_core()
    core.add(request("a", [1, 2]))
    core.launch()
    core.collect()
    deltas = core.abort("a")
    assert [delta.finish_reason for delta in deltas] == [None, FinishReason.ABORT]
    assert deltas[0].token_ids == tuple(greedy([1, 2], 1))


# -- faults --------------------------------------------------------------------------------------------------


def test_a_failed_step_ends_its_requests_with_an_error_and_the_engine_goes_on() -> None:
    core = fake_core(fake_options(max_num_seqs=1))
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    core.add(request("a", [1, 2], n=1))
    core.add(request("b", [3, 4]))
    results = Results()
    results.add(core.step())
    runner.fail_next = RuntimeError("out of memory\nwith a long tail")
    results.add(core.step())
    run(core, results)
    assert results["a", 0].finish is FinishReason.ERROR
    assert results["a", 0].error == "the step that computed this request failed: RuntimeError: out of memory"
    assert results["b", 0].token_ids == greedy([3, 4], 6)
    assert core.stats().healthy


def test_a_failed_step_leaves_nothing_in_the_prefix_cache() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    core.add(request("a", list(range(9))))
    run(core)
    assert core.stats().cached_blocks > 0
    core.add(request("b", [50] * 9))
    runner.fail_next = RuntimeError("lost")
    core.step()
    assert core.stats().cached_blocks == 0


def test_steps_that_fail_again_and_again_are_an_engine_fault() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for i in range(3):
        core.add(request(f"r{i}", [1]))
        runner.fail_next = RuntimeError("broken")
        if i < 2:
            core.step()
    assert not core.stats().healthy
    with pytest.raises(EngineFault, match="3 steps in a row"):
        core.step()
    assert [delta.finish_reason for delta in core.fail_all("gone")] == [FinishReason.ERROR]


def test_a_row_without_valid_probabilities_ends_alone() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for name in "ab":
        core.add(request(name, [1, ord(name) % 60]))
    results = Results()
    results.add(core.step())
    runner.nan_next = True
    run(core, results)
    assert results["a", 0].finish is FinishReason.ERROR
    assert "probabilities" in str(results["a", 0].error)
    assert results["b", 0].finish is FinishReason.LENGTH


def test_the_watchdog_fails_the_head_when_work_waits_and_nothing_can_be_scheduled() -> None:
    """vllm#45414: nothing running, work waiting, health 200."""
    core = fake_core(fake_options(num_blocks=4))
    leaked = [core.scheduler.pool.allocate() for _ in range(3)]
    core.add(request("big", [1] * 9))
    core.add(request("small", [1, 2], replace(GREEDY, max_tokens=2)))
    results = Results()
    results.add(core.step())
    assert results["big", 0].finish is FinishReason.ERROR
    assert "could not schedule" in str(results["big", 0].error)
    assert not core.stats().healthy
    assert core.stats().stalls == 1
    results.add(core.step())
    assert core.stats().healthy
    core.scheduler.pool.release(leaked)
    run(core, results)
    assert results["small", 0].token_ids == greedy([1, 2], 2)


class Evens:
    """A grammar of even tokens that ends after three of them."""

    def __init__(self) -> None:
        self.left = 3

    def allowed(self) -> torch.Tensor | None:
        tokens = torch.arange(64)
        return tokens % 2 == 0 if self.left else tokens == EOS

    def accept(self, token: int) -> bool:
        allowed = token == EOS if self.left == 0 else token % 2 == 0
        self.left -= 1
        return allowed


def test_every_choice_follows_a_grammar_of_its_own_through_preemption() -> None:
    core = fake_core(
        fake_options(num_blocks=5, block_size=2), grammars=lambda one: Evens() if one.id != "free" else None
    )
    core.add(request("a", [1, 2, 3], SamplingParams(max_tokens=6, seed=1), n=2))
    core.add(request("free", [1, 2], replace(GREEDY, max_tokens=6)))
    results = run(core)
    for index in range(2):
        output = results["a", index].token_ids
        assert output[3:] == [EOS]
        assert all(token % 2 == 0 for token in output[:3])
    assert results["free", 0].token_ids == greedy([1, 2], 6)


# -- the policy hears of everything --------------------------------------------------------------------------


class Recorder(FCFS):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str, int]] = []

    def dispatched(self, job: Job) -> None:
        self.heard.append(("dispatched", job.id, 0))

    def completed(self, job: Job, output_tokens: int) -> None:
        self.heard.append(("completed", job.id, output_tokens))

    def removed(self, job: Job) -> None:
        self.heard.append(("removed", job.id, 0))


def test_the_policy_hears_once_of_each_requests_start_and_of_its_end_with_the_real_count() -> None:
    policy = Recorder()
    core = fake_core(fake_options(num_blocks=8, block_size=2, max_num_seqs=3), policy=policy)
    core.add(request("a", [1, 2, 3], replace(GREEDY, max_tokens=7), n=2))
    core.add(request("b", [4, 5, 6], replace(GREEDY, max_tokens=7)))
    core.add(request("c", [7]))
    core.step()
    core.abort("c")
    run(core)
    assert core.stats().preemptions > 0
    assert sorted(policy.heard) == [
        ("completed", "a", 14),
        ("completed", "b", 7),
        ("dispatched", "a", 0),
        ("dispatched", "b", 0),
        ("removed", "c", 0),
    ]


def test_stats_count_steps_batches_and_tokens() -> None:
    core = fake_core()
    core.add(request("a", [1, 2, 3], replace(GREEDY, max_tokens=4)))
    core.add(request("b", [4], replace(GREEDY, max_tokens=2)))
    run(core)
    stats = core.stats()
    assert stats.steps == 4
    assert stats.mean_running == (2 + 2 + 1 + 1) / 4
    assert (stats.prompt_tokens, stats.generation_tokens) == (4, 6)
    assert (stats.requests_received, stats.requests_finished) == (2, 2)
    assert stats.step_seconds > 0
    assert stats.kv_usage == 0


def test_stats_say_how_long_requests_waited_and_how_much_each_step_computed() -> None:
    core = fake_core(fake_options(max_num_seqs=1))
    core.add(request("a", [1, 2, 3], replace(GREEDY, max_tokens=2)))
    core.add(request("b", [1, 2], replace(GREEDY, max_tokens=1)))
    run(core)
    stats = core.stats()
    assert sum(stats.queue_s.counts) == 2, "once per request"
    assert stats.queue_s.total > 0
    assert sum(stats.iteration_tokens.counts) == stats.steps == 3
    assert stats.iteration_tokens.total == 3 + 1 + 2


def test_a_step_that_fails_while_it_saves_loses_what_it_would_have_saved_and_nothing_else() -> None:
    core = fake_core(fake_options(num_blocks=6, block_size=2, offload_blocks=50))
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for i in range(3):
        core.add(request(f"r{i}", [i] * 3, replace(GREEDY, max_tokens=7)))
    results = Results()
    while core.stats().preemptions == 0:
        runner.fail_next = None
        results.add(core.step())
        runner.fail_next = RuntimeError("a fault")  # in whichever step is the one that preempts
    runner.fail_next = None
    run(core, results)
    for i in range(3):
        if results[f"r{i}", 0].finish is not FinishReason.ERROR:
            assert results[f"r{i}", 0].token_ids == greedy([i] * 3, 7)


# -- any mix -------------------------------------------------------------------------------------------------

PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 9),
    min_tokens=st.sampled_from([0, 0, 3]),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
    stop=st.sampled_from([(), ("a",), ("b", "cd")]),
    stop_token_ids=st.sampled_from([(), (5, 6, 7)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 2]),
)
PROMPTS = st.tuples(st.integers(0, 2), st.integers(1, 10)).map(
    lambda drawn: [(drawn[0] + 5 * i) % 63 for i in range(drawn[1])]
)


@st.composite
def requests(draw: st.DrawFn, count: int = 7) -> list[GenerationRequest]:
    drawn = draw(
        st.lists(
            st.tuples(PROMPTS, PARAMS, st.sampled_from([1, 1, 2, 3]), st.sampled_from(["", "s"]), st.floats(0, 1e-3)),
            min_size=1,
            max_size=count,
        )
    )
    return [
        request(f"r{i}", prompt, params, n=n, cache_salt=salt, class_slack=slack, predicted_tokens=float(i))
        for i, (prompt, params, n, salt, slack) in enumerate(drawn)
    ]


@given(
    mix=requests(),
    block_size=st.integers(1, 5),
    spare=st.integers(0, 8),
    chunk=st.integers(1, 9),
    budget=st.integers(4, 12),
    policy=st.sampled_from(["fcfs", "priority", "sjf", "predicted", "prefill-first", "edf", "fair"]),
    mixed=st.booleans(),
    cache=st.booleans(),
    overlap=st.booleans(),
    offload=st.sampled_from([0, 3, 50]),
    data=st.data(),
)
@settings(max_examples=120, deadline=None)
def test_in_any_company_every_request_gets_the_tokens_it_would_get_alone(
    mix: list[GenerationRequest],
    block_size: int,
    spare: int,
    chunk: int,
    budget: int,
    policy: str,
    mixed: bool,
    cache: bool,
    overlap: bool,
    offload: int,
    data: st.DataObject,
) -> None:
    longest = max(len(one.prompt_token_ids) + one.params.max_tokens for one in mix)
    core = fake_core(
        fake_options(
            num_blocks=-(-longest // block_size) + spare,
            block_size=block_size,
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            prefill_chunk=chunk,
            policy=policy,
            mix=mixed,
            prefix_cache=cache,
            offload_blocks=offload,
        )
    )
    results, aborted = Results(), set()
    for one in mix:
        core.add(one)
        for _ in range(data.draw(st.integers(0, 3), label="steps before the next arrival")):
            results.add(core.step())
        if data.draw(st.integers(0, 9), label="abort") == 0:
            victim = data.draw(st.sampled_from(mix), label="victim").id
            aborted.add(victim)
            results.add(core.abort(victim))
            core.check_integrity()
    run(core, results, overlap=overlap)
    for one in mix:
        alone = solo(one)
        for index in range(one.n):
            got, want = results[one.id, index], alone[one.id, index]
            if one.id in aborted:
                assert got.finish is not None
                assert got.token_ids == want.token_ids[: len(got.token_ids)]
                assert want.text.startswith(got.text)
            else:
                assert got == want
                assert results.usage[one.id].completion_tokens == alone.usage[one.id].completion_tokens


class Engine(RuleBasedStateMachine):
    """Arrivals, steps, aborts and faults in any order: the books balance after each, and everybody gets an end."""

    def __init__(self) -> None:
        super().__init__()
        self.core = fake_core(
            fake_options(num_blocks=7, block_size=3, max_num_seqs=4, max_num_batched_tokens=7, policy="priority")
        )
        self.results = Results()
        self.sent: dict[str, GenerationRequest] = {}
        self.disturbed: set[str] = set()

    @rule(prompt=PROMPTS, params=PARAMS, n=st.integers(1, 3), slack=st.floats(0, 1e-3))
    def arrive(self, prompt: list[int], params: SamplingParams, n: int, slack: float) -> None:
        one = request(f"r{len(self.sent)}", prompt, params, n=n, class_slack=slack)
        self.core.add(one)
        self.sent[one.id] = one

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.results.add(self.core.step())

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.sent:
            name = data.draw(st.sampled_from(sorted(self.sent)))
            self.disturbed.add(name)
            self.results.add(self.core.abort(name))

    @rule()
    def fault(self) -> None:
        runner = self.core.runner
        assert isinstance(runner, FakeRunner)
        runner.fail_next = RuntimeError("a fault")
        deltas = self.core.step()
        runner.fail_next = None
        self.disturbed.update(delta.request_id for delta in deltas if delta.finish_reason is FinishReason.ERROR)
        self.results.add(deltas)
        self.arrive([1], GREEDY, 1, 0.0)  # a step that succeeds: three failures in a row would be the end
        self.step(1)

    @invariant()
    def balanced(self) -> None:
        self.core.check_integrity()

    def teardown(self) -> None:
        run(self.core, self.results)
        for name, one in self.sent.items():
            assert all(self.results[name, index].finish is not None for index in range(one.n))
            if name not in self.disturbed:
                alone = solo(one)
                assert all(self.results[name, index] == alone[name, index] for index in range(one.n))


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
