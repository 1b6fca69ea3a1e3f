"""Faults that other engines had, by where they were reported; those whose test is not elsewhere in this folder."""

from __future__ import annotations

import sys
from dataclasses import fields, replace

import pytest

from backend.engine.batch import Batch
from backend.engine.core import EngineCore
from backend.engine.request import FinishReason, GenerationRequest, SamplingParams
from backend.engine.sequence import SequenceState
from policies.priority import Priority
from tests.backend.engine.driver import Driver
from tests.backend.engine.fake import FakeDecoder, FakeRunner, fake_core, fake_options, greedy
from tests.backend.engine.test_core import GREEDY, Results, request, run, solo


def preempt(core: EngineCore, name: str) -> bool:
    """Take the blocks of every running sequence of a request, as memory pressure would."""
    hit = False
    for sequence in list(core.scheduler):
        if sequence.request.id == name and sequence.state.running:
            core.scheduler._preempt(sequence, Batch(core.scheduler.pool))
            hit = True
    core.check_integrity()
    return hit


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("at", range(1, 10))
def test_vllm_16832_everything_a_request_has_survives_recompute_preemption(at: int, cache: bool) -> None:
    """Tokens, text, stop hold-back, log-probabilities, penalties, noise and usage."""
    params = SamplingParams(
        max_tokens=10,
        temperature=0.9,
        seed=3,
        frequency_penalty=0.4,
        repetition_penalty=1.1,
        logprobs=2,
        ignore_eos=True,
    )
    text = solo(request("a", [1, 2, 3, 4, 5], params))["a", 0].text
    params = replace(params, stop=(text[3:5] + "~", text[6:8]))
    one = request("a", [1, 2, 3, 4, 5], params, n=2)
    core = fake_core(fake_options(prefill_chunk=3, prefix_cache=cache))
    core.add(one)
    results = Results()
    for _ in range(at):
        results.add(core.step())
    preempt(core, "a")
    run(core, results)
    undisturbed = solo(one)
    assert results["a", 0] == undisturbed["a", 0]
    assert results["a", 1] == undisturbed["a", 1]
    assert results.usage["a"].completion_tokens == undisturbed.usage["a"].completion_tokens
    assert results.usage["a"].cached_tokens == 0, "what is found again after a preemption was not saved"
    assert core.stats().prompt_tokens == 5, "a prompt counts once, however often it is computed"


@pytest.mark.parametrize("offset", [0, 1])
def test_nano_vllm_217_a_preempted_request_loses_no_token_at_a_block_border(offset: int) -> None:
    core = fake_core(fake_options(block_size=4))
    core.add(request("a", [1] * (4 + offset), replace(GREEDY, max_tokens=12)))
    results = Results()
    while core.has_work:
        results.add(core.step())
        sequence = next(iter(core.scheduler), None)
        if sequence is not None and len(sequence.tokens) % 4 in (0, 1):
            preempt(core, "a")
            results.add(core.step())
    assert results["a", 0].token_ids == greedy([1] * (4 + offset), 12)


def test_nano_vllm_211_tokens_are_counted_after_the_prefix_hit_of_a_resume_is_known() -> None:
    driver = Driver(16, 4)
    sequence = driver.add("a", list(range(9)), 6)
    for _ in range(3):
        driver.step()
    driver.scheduler._preempt(sequence, Batch(driver.pool))
    driver.step()
    assert driver.runner.steps[-1].query_lens == [4], "two blocks of nine + three tokens were found again"
    assert driver.runner.steps[-1].context_lens == [12]


def test_llama_cpp_27148_two_tenants_at_once_never_see_the_others_canary() -> None:
    """What is reported as cached is what was reused, and it is the tenant's own."""
    core = fake_core(fake_options(num_blocks=40))
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    shared = [9] * 8
    results = Results()
    computed = 0
    for turn in range(4):
        for tenant, canary in (("red", 11), ("blue", 22)):
            core.add(
                request(
                    f"{tenant}{turn}",
                    [*shared, canary, *range(3 + turn)],
                    replace(GREEDY, max_tokens=2),
                    cache_salt=tenant,
                )
            )
        before = runner.tokens_computed
        run(core, results)
        computed = runner.tokens_computed - before
        prompts = 2 * (9 + 3 + turn)
        reported = sum(results.usage[f"{tenant}{turn}"].cached_tokens for tenant in ("red", "blue"))
        assert computed == prompts - reported + 2, "computed + reused is everything there was"
    for turn in range(4):
        for tenant, canary in (("red", 11), ("blue", 22)):
            assert results[f"{tenant}{turn}", 0].token_ids == greedy([*shared, canary, *range(3 + turn)], 2)
    assert results.usage["red3"].cached_tokens == 12


def test_vllm_42019_stale_log_probabilities_cannot_come_from_a_prefix_hit() -> None:
    """Prompt log-probabilities are not offered; those of the first output token do not depend on the cache."""
    core = fake_core()
    params = replace(GREEDY, logprobs=3, max_tokens=1)
    core.add(request("cold", [5] * 9, params))
    cold = run(core)
    core.add(request("warm", [5] * 9, params))
    warm = run(core)
    assert warm.usage["warm"].cached_tokens == 8
    assert warm["warm", 0].logprobs == cold["cold", 0].logprobs


def test_vllm_16863_children_have_results_of_their_own_and_the_prompt_counts_once() -> None:
    core = fake_core()
    core.add(request("a", [1, 2, 3], SamplingParams(max_tokens=5, seed=1, ignore_eos=True), n=3))
    core.add(request("b", [1, 2, 3], SamplingParams(max_tokens=5, seed=9, ignore_eos=True), n=2))
    results = run(core)
    assert sorted(results) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert (results.usage["a"].prompt_tokens, results.usage["a"].completion_tokens) == (3, 15)
    assert core.stats().prompt_tokens == 6


def test_vllm_51226_a_seeded_request_repeats_whether_or_not_its_mates_have_seeds() -> None:
    seeded = request("seeded", [1, 2], SamplingParams(max_tokens=8, seed=4, ignore_eos=True))
    expected = solo(seeded)["seeded", 0]
    for mate in (SamplingParams(max_tokens=8), SamplingParams(max_tokens=3, seed=1), GREEDY):
        core = fake_core()
        core.add(request("mate", [3], mate))
        core.add(seeded)
        assert run(core)["seeded", 0] == expected


def test_transformers_45943_a_second_batch_starts_afresh() -> None:
    core = fake_core()
    for _ in range(2):
        for name, prompt in (("a", [1]), ("b", [2])):
            core.add(request(name, prompt))
        results = run(core)
        assert results["a", 0].token_ids == greedy([1], 6)
        assert results["b", 0].token_ids == greedy([2], 6)


def test_vllm_24365_priority_decides_admission_and_victims_and_never_interrupts_for_a_newcomer() -> None:
    driver = Driver(32, 4, max_num_seqs=2, policy=Priority())
    patient = [driver.add(f"patient{i}", [i], 5, slack=1000.0) for i in range(2)]
    driver.step()
    driver.add("urgent", [9], 2)
    driver.run()
    assert all(sequence.preemptions == 0 for sequence in patient)
    assert driver.order[-1] == "urgent"


def test_sglang_36855_no_field_of_a_request_is_a_switch_of_the_scheduler() -> None:
    """Whatever a caller may set either shapes its own output or is an input of the policy."""
    shaping = {"id", "prompt_token_ids", "params", "n", "grammar", "grammar_param"}
    policy = {"class_slack", "tenant", "predicted_tokens", "cache_salt"}
    assert {field.name for field in fields(GenerationRequest)} <= shaping | policy


@pytest.mark.parametrize("value", [0.0, 1e9, float("inf"), -1e9])
def test_extreme_policy_inputs_livelock_nobody(value: float) -> None:
    core = fake_core(fake_options(policy="priority", max_num_seqs=2))
    core.add(request("odd", [1, 2], class_slack=value))
    for i in range(3):
        core.add(request(f"r{i}", [i]))
    results = run(core)
    assert all(result.finish is FinishReason.LENGTH for result in results.values())


def test_maclocal_140_rows_that_finish_early_in_a_full_batch_corrupt_nobody() -> None:
    core = fake_core()
    ones = [request(f"r{i}", [i, i + 1], replace(GREEDY, max_tokens=1 + (5 * i) % 8)) for i in range(8)]
    for one in ones:
        core.add(one)
    results = run(core)
    for i, one in enumerate(ones):
        assert results[one.id, 0].token_ids == greedy([i, i + 1], one.params.max_tokens)


def test_vllm_46283_every_way_out_gives_the_blocks_back() -> None:
    ends = {"finish", "abort", "error", "refusal", "fault"}
    for end in sorted(ends):
        core = fake_core(fake_options(num_blocks=16))
        runner = core.runner
        assert isinstance(runner, FakeRunner)
        core.add(request("a", list(range(9)), n=2))
        core.step()
        core.step()
        if end == "abort":
            core.abort("a")
        elif end == "error":
            core.fail_all("over")
        elif end == "refusal":
            with pytest.raises(Exception, match="KV cache"):
                core.add(request("b", [1] * 64))
        elif end == "fault":
            runner.fail_next = RuntimeError("fault")
        run(core)


def test_smg_2203_text_after_a_stop_string_and_its_held_back_beginning_never_come_out() -> None:
    output = greedy([7, 8], 12)
    text = FakeDecoder().decode(output)
    core = fake_core()
    core.add(request("a", [7, 8], replace(GREEDY, max_tokens=12, stop=(text[5:9], text[6:] + "x"))))
    results = run(core)
    assert results["a", 0].text == text[: text.index(text[5:9])]


def test_python_work_per_sequence_is_the_same_for_16_and_for_512_sequences_and_at_any_length() -> None:
    """Counted in function calls of the scheduler and the block pool, which no other load can disturb."""

    def calls_per_sequence(count: int, length: int) -> float:
        driver = Driver(count * (length // 4 + 8), 4, max_num_seqs=count, max_num_batched_tokens=count * length)
        sequences = [driver.add(f"r{i}", [(i + j) % 60 for j in range(length - i % 4)], 100) for i in range(count)]
        plan = driver.scheduler.schedule()
        assert plan is not None
        driver.scheduler.commit(plan)
        calls = 0

        def count_call(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        for _ in range(8):
            for sequence in sequences:
                sequence.tokens.append(1)
            sys.setprofile(count_call)
            plan = driver.scheduler.schedule()
            assert plan is not None
            driver.scheduler.commit(plan)
            sys.setprofile(None)
        assert all(sequence.state is SequenceState.DECODING for sequence in sequences)
        return calls / 8 / count

    few, many, long = calls_per_sequence(16, 8), calls_per_sequence(512, 8), calls_per_sequence(16, 400)
    assert many < 1.2 * few
    assert long < 1.2 * few
