"""Requests in each other's company, and what a server says by itself when it is asked again.

What a server answers may depend on who else asks: a batch that holds one bad input fails as a whole, and a language
model's arithmetic moves with what else it computes. So what differs from the answer alone is asked direct as well, in
the same company, and counts as a difference only where going direct never gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.compat.compare import Verdict, compare
from benchmarks.compat.exchange import Answer, Ask, Callers, ask, ask_together

__all__ = ["in_company", "settled"]

_ROUNDS = 4
_CONTROLS = 20


def in_company(asks: Sequence[Ask], size: int, direct: str, through: str) -> list[Verdict]:
    """Send `asks` to Trimtab `size` at a time, several times over, and judge each by the worst of its answers."""
    verdicts: list[Verdict] = []
    for start in range(0, len(asks) if size else 0, size or 1):
        group = tuple(asks[at % len(asks)] for at in range(start, start + size))
        alone = [ask(direct, question) for question in group]
        rounds = [ask_together(through, group)]
        with Callers(through, size) as callers:
            rounds += [callers.ask(group) for _ in range(_ROUNDS - 1)]
        again = [ask(direct, question) for question in group]
        for at, question in enumerate(group):
            named = replace(question, name=f"{question.name}, in company")
            answers = [answers[at] for answers in rounds]
            judged = [compare(named, alone[at], answer, again[at]) for answer in answers]
            for verdict, answer in zip(judged, answers, strict=True):
                settled(verdict, named, answer, partial(_in_group, direct, group, at))
            verdicts.append(max(judged, key=lambda verdict: (len(verdict.differences), len(verdict.varies))))
    return verdicts


def _in_group(url: str, group: Sequence[Ask], at: int) -> Answer:
    return ask_together(url, group)[at]


def settled(verdict: Verdict, question: Ask, through: Answer, once_more: Callable[[], Answer]) -> None:
    """Take a difference for the server's own where going direct, asked `once_more` and again, has it too."""
    if verdict.same:
        return
    before: Answer | None = None
    for _ in range(_CONTROLS):
        control = once_more()
        last = control if before is None or before.status != control.status else before
        if compare(question, control, through, control).same or compare(question, control, through, last).same:
            verdict.varies += [told.partition(":")[0] for told in verdict.differences]
            verdict.differences.clear()
            return
        before = control
