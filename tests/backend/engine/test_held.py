"""Requests whose grammar is still being compiled: accepted, waiting, and nobody else's concern."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from backend.engine.core import EngineCore
from backend.engine.errors import EngineOverloaded, RequestRefused
from backend.engine.held import MakeGrammar
from backend.engine.request import Delta, FinishReason, Usage
from tests.backend.engine.fake import VOCAB, fake_core, fake_options, greedy
from tests.backend.engine.results import GREEDY, Results, request, run


class Anything:
    """A grammar of all texts."""

    def allowed(self) -> torch.Tensor | None:
        return torch.ones(VOCAB, dtype=torch.bool)

    def accept(self, token: int) -> bool:
        return True


class Compiler:
    """Compiles a grammar when told to."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[MakeGrammar]] = {}

    def __call__(self, grammar: str) -> Future[MakeGrammar]:
        return self.futures.setdefault(grammar, Future())

    def finish(self, grammar: str) -> None:
        self.futures[grammar].set_result(Anything)


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


def core_with(compiler: Compiler, **options: object) -> EngineCore:
    return fake_core(fake_options(**options), grammars=compiler)


def test_a_running_stream_goes_on_while_another_requests_grammar_is_compiled(compiler: Compiler) -> None:
    core = core_with(compiler)
    core.add(request("running", [1, 2], replace(GREEDY, max_tokens=12)))
    core.add(request("held", [3, 4], grammar="g", n=2))
    results = Results()
    for _ in range(12):
        results.add(core.step())
        core.check_integrity()
    assert results["running", 0].token_ids == greedy([1, 2], 12)
    assert results["running", 0].finish is FinishReason.LENGTH
    assert ("held", 0) not in results
    assert core.stats().waiting == 1
    assert not core.has_work
    compiler.finish("g")
    assert core.has_work
    run(core, results)
    assert [results["held", index].token_ids for index in range(2)] == [greedy([3, 4], 6)] * 2
    assert set(results.usage) == {"running", "held"}


@pytest.mark.parametrize("late", [0, 1, 5])
def test_how_long_it_is_held_changes_no_token(late: int) -> None:
    """Neither its own, nor those of whoever draws a seed after it."""

    def tokens(held_for: int) -> dict[tuple[str, int], list[int]]:
        compiler = Compiler()
        core = core_with(compiler)
        warm = replace(GREEDY, temperature=1.0)
        core.add(request("held", [3, 4], warm, grammar="g", n=2))
        core.add(request("free", [5], warm))
        results = Results()
        for _ in range(held_for):
            results.add(core.step())
        compiler.finish("g")
        run(core, results)
        return {key: result.token_ids for key, result in results.items()}

    assert tokens(late) == tokens(0)


def test_requests_with_one_grammar_enter_in_the_order_of_arrival(compiler: Compiler) -> None:
    core = core_with(compiler, max_num_seqs=1)
    for name in "abc":
        core.add(request(name, [ord(name) % 60], grammar="g"))
    core.add(request("free", [1]))
    compiler.finish("g")
    order: list[str] = []
    while core.has_work:
        order += [delta.request_id for delta in core.step() if delta.finish_reason is not None]
    assert order == ["a", "b", "c", "free"]


def test_whoever_holds_it_is_told_when_it_is_ready(compiler: Compiler) -> None:
    core = core_with(compiler)
    calls: list[str] = []
    core.add(request("a", [1], grammar="g"), lambda: calls.append("a"))
    core.add(request("b", [1], grammar="h"), lambda: calls.append("b"))
    compiler.finish("h")
    assert calls == ["b"]
    core.add(request("c", [1], grammar="h"), lambda: calls.append("c"))
    assert calls == ["b", "c"]


def test_a_grammar_that_fails_ends_its_own_request_and_blames_its_field(compiler: Compiler) -> None:
    core = core_with(compiler)
    core.add(request("free", [1, 2]))
    core.add(request("bad", [3], grammar="bad", grammar_param="guided_regex", n=2))
    core.add(request("good", [4], grammar="good"))
    results = Results()
    results.add(core.step())
    compiler.futures["bad"].set_exception(ValueError("no text satisfies it"))
    compiler.finish("good")
    deltas = core.step()
    ends = [delta for delta in deltas if delta.request_id == "bad"]
    assert ends == [
        Delta("bad", index, "", finish_reason=FinishReason.ERROR, usage=usage, error="no text satisfies it",
              error_param="guided_regex")
        for index, usage in enumerate((None, Usage(1, 0)))
    ]  # fmt: skip
    results.add(deltas)
    run(core, results)
    assert results["free", 0].token_ids == greedy([1, 2], 6)
    assert results["good", 0].token_ids == greedy([4], 6)
    assert set(results.usage) == {"free", "bad", "good"}


@pytest.mark.parametrize("finished", [False, True])
def test_aborting_while_it_is_held_is_legal_and_every_choice_ends_once(compiler: Compiler, finished: bool) -> None:
    core = core_with(compiler)
    core.add(request("a", [1], grammar="g", n=2))
    core.add(request("b", [2], grammar="g"))
    if finished:
        compiler.finish("g")
    results = Results()
    results.add(core.abort("a"))
    assert core.abort("a") == []
    assert [results["a", index].finish for index in range(2)] == [FinishReason.ABORT] * 2
    assert results.usage["a"] == Usage(1, 0)
    core.add(request("a", [7]))  # its id is free again
    if not finished:
        compiler.finish("g")
    results = run(core)
    assert results["a", 0].token_ids == greedy([7], 6)
    assert results["b", 0].token_ids == greedy([2], 6)


@pytest.mark.parametrize("begun", [False, True])
def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled_unless_it_was_begun(
    compiler: Compiler, begun: bool
) -> None:
    core = core_with(compiler)
    for name in "abc":
        core.add(request(name, [1], grammar="other" if name == "c" else "g"))
    shared, other = compiler.futures["g"], compiler.futures["other"]
    if begun:
        assert shared.set_running_or_notify_cancel()
    core.abort("a")
    assert not shared.cancelled(), "another request waits for it"
    core.abort("b")
    assert shared.cancelled() is not begun
    assert not other.cancelled()
    assert not core.has_work
    core.fail_all("the engine is shutting down")
    assert other.cancelled()


def test_failing_all_ends_those_that_are_held(compiler: Compiler) -> None:
    core = core_with(compiler)
    core.add(request("running", [1]))
    core.add(request("held", [2], grammar="g"))
    core.step()
    ends = core.fail_all("the engine is shutting down")
    assert {delta.request_id: delta.error for delta in ends} == dict.fromkeys(
        ("running", "held"), "the engine is shutting down"
    )
    core.check_integrity()
    assert core.stats().waiting == 0


def test_those_that_are_held_count_as_waiting_and_their_ids_as_taken(compiler: Compiler) -> None:
    core = core_with(compiler, max_waiting=2)
    core.add(request("a", [1], grammar="g"))
    with pytest.raises(RequestRefused, match="already running"):
        core.add(request("a", [2]))
    core.add(request("b", [2]))
    with pytest.raises(EngineOverloaded, match="2 requests are waiting"):
        core.add(request("c", [3]))
    with pytest.raises(EngineOverloaded):
        core.add(request("d", [3], grammar="g"))


def test_what_can_never_be_served_is_refused_before_its_grammar_is_compiled(compiler: Compiler) -> None:
    core = core_with(compiler)
    with pytest.raises(RequestRefused, match="no tokens"):
        core.add(request("a", [], grammar="g"))
    assert not compiler.futures


def test_an_engine_without_grammars_refuses_them() -> None:
    with pytest.raises(RequestRefused, match="without grammars") as refused:
        fake_core().add(request("a", [1], grammar="g", grammar_param="guided_json"))
    assert refused.value.param == "guided_json"
