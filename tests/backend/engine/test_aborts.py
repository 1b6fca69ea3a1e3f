"""A request may be aborted at any moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.engine.request import FinishReason
from tests.backend.engine.fake import fake_core, fake_options, greedy
from tests.backend.engine.results import GREEDY, Results, request, run


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


def test_an_abort_tells_first_what_came_before_it() -> None:
    core = fake_core()
    core.add(request("a", [1, 2]))
    core.launch()
    core.collect()
    deltas = core.abort("a")
    assert [delta.finish_reason for delta in deltas] == [None, FinishReason.ABORT]
    assert deltas[0].token_ids == tuple(greedy([1, 2], 1))
