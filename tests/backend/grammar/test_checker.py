"""Grammars that the library does not survive, or does not come back from, cost their sender a 400 and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

pytest.importorskip("llguidance")

from backend.grammar import source
from backend.grammar.checker import CheckerBusy, GrammarChecker
from backend.grammar.source import GrammarError

GOOD = source.from_choices(["yes", "no"])
ENDLESS_WORK = source.from_json_schema(
    {"allOf": [{"type": "string", "pattern": f"^.*{number}.*$"} for number in range(200)]}
)


def chain(links: int) -> str:
    """Return a schema whose references lead `links` deep."""
    members = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]}
        for i in range(links)
    }
    return source.from_json_schema({"$ref": "#/$defs/d0", "$defs": {**members, f"d{links}": {"type": "null"}}})


@pytest_asyncio.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    made = GrammarChecker(timeout_s=60.0)
    yield made
    await made.close()


async def test_good_grammars_pass_and_others_are_refused_with_the_reason_each_time(checker: GrammarChecker) -> None:
    for _ in range(2):
        await checker.check(GOOD)
        with pytest.raises(GrammarError, match="Invalid type: strin"):
            await checker.check(source.from_json_schema({"type": "strin"}))
        with pytest.raises(GrammarError, match="has no end"):
            await checker.check(source.from_json_schema({"$ref": "#"}))


@pytest.mark.parametrize(
    "deep",
    [
        chain(20_000),
        source.from_lark("start: r0\n" + "".join(f'r{i}: "x" r{i + 1}\n' for i in range(20_000)) + 'r20000: "z"'),
        source.from_lark("start: T0\n" + "".join(f'T{i}: "x" T{i + 1}\n' for i in range(20_000)) + 'T20000: "z"'),
        source.from_lark("start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
        source.from_lark('start: %json {"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    ],
    ids=["references", "rules", "terminals", "groups", "inline"],
)
async def test_grammar_that_overflows_the_librarys_stack_is_refused_and_the_next_is_checked(
    checker: GrammarChecker, deep: str
) -> None:
    with pytest.raises(GrammarError):
        await checker.check(deep)
    await checker.check(GOOD)
    await checker.check(chain(50))


async def test_grammar_that_takes_too_long_is_given_up_and_the_next_is_checked(checker: GrammarChecker) -> None:
    await checker.check(GOOD)
    checker._timeout_s = 0.5
    with pytest.raises(GrammarError, match=r"longer than 0\.5 seconds"):
        await checker.check(ENDLESS_WORK)
    checker._timeout_s = 60.0
    await checker.check(chain(3))


async def test_whoever_stops_waiting_leaves_no_answer_for_the_next(checker: GrammarChecker) -> None:
    await checker.check(GOOD)
    gone = asyncio.create_task(checker.check(ENDLESS_WORK))
    waiting = asyncio.create_task(checker.check(chain(3)))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await waiting
    with pytest.raises(GrammarError, match="has no end"):
        await checker.check(source.from_lark('start: "a" start'))


async def test_the_process_ends_with_its_parent_even_in_the_middle_of_a_grammar(checker: GrammarChecker) -> None:
    await checker.check(GOOD)
    process = checker._process
    assert process is not None
    assert process.stdin is not None
    waiting = asyncio.create_task(checker.check(ENDLESS_WORK))
    for _ in range(5):
        await asyncio.sleep(0)  # until the grammar is written
    process.stdin.close()  # what the kernel does for a parent that is killed
    with pytest.raises(GrammarError):
        await waiting
    # Had it not ended by itself, it would have been killed: -9. Where another wait was quicker, asyncio says 255.
    assert await process.wait() in (0, 255)


async def test_closing_ends_the_process(checker: GrammarChecker) -> None:
    await checker.check(GOOD)
    process = checker._process
    assert process is not None
    await checker.close()
    assert process.returncode is not None


def endless(number: int) -> str:
    """Return a grammar like ENDLESS_WORK that nobody has sent before."""
    return source.from_json_schema(
        {"allOf": [{"type": "string", "pattern": f"^.*{number}x{part}.*$"} for part in range(200)]}
    )


async def _until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - nobody is told when a process has ended
        await asyncio.sleep(0.01)


async def test_grammars_that_take_long_hold_nobody_up_and_only_few_are_checked_at_once() -> None:
    checker = GrammarChecker(timeout_s=60.0, patience_s=0.5, max_slow=2)
    try:
        await checker.check(GOOD)
        hostile = [asyncio.create_task(checker.check(endless(number))) for number in range(5)]
        await asyncio.sleep(0)
        honest = [asyncio.create_task(checker.check(chain(links))) for links in range(3, 6)]
        await asyncio.gather(*honest)
        assert len(checker._slow) == 2
        await asyncio.wait(hostile, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in hostile if task.done()]
        assert len(ended) == 3
        for task in ended:
            assert isinstance(task.exception(), CheckerBusy)
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        assert not checker._open
        await checker.check(chain(6))
        await asyncio.wait_for(_until(lambda: not checker._slow), 10.0)
    finally:
        await checker.close()
    assert checker._process is None


async def test_one_grammar_from_many_callers_is_checked_once_and_goes_on_while_one_waits(
    checker: GrammarChecker,
) -> None:
    await checker.check(GOOD)
    checker._timeout_s = 1.5
    callers = [asyncio.create_task(checker.check(ENDLESS_WORK)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in callers[:3]:
        task.cancel()
    with pytest.raises(GrammarError, match="longer than"):
        await callers[3]
    assert not checker._open
    with pytest.raises(GrammarError, match="longer than"):
        await checker.check(ENDLESS_WORK)  # remembered
