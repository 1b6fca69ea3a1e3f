"""The life of a request in the core, alone and among others, and what is told of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from backend.engine.request import FinishReason, SamplingParams, Usage
from backend.engine.sampler import Sampler, SamplingState
from policies import Job
from policies.fcfs import FCFS
from tests.backend.engine.fake import (
    EOS,
    VOCAB,
    FakeDecoder,
    FakeRunner,
    compiled,
    fake_core,
    fake_options,
    greedy,
    logits_after,
)
from tests.backend.engine.results import GREEDY, Results, first_with, request, run, solo


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
        (sampled,) = Sampler(VOCAB).launch(torch.from_numpy(logits_after(tokens)).unsqueeze(0), [state]).result()
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
    core = fake_core(fake_options(num_blocks=5, block_size=2), grammars=compiled(Evens))
    core.add(request("a", [1, 2, 3], SamplingParams(max_tokens=6, seed=1), n=2, grammar="even"))
    core.add(request("free", [1, 2], replace(GREEDY, max_tokens=6)))
    results = run(core)
    for index in range(2):
        output = results["a", index].token_ids
        assert output[3:] == [EOS]
        assert all(token % 2 == 0 for token in output[:3])
    assert results["free", 0].token_ids == greedy([1, 2], 6)


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
    assert stats.requests_received == 2
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
