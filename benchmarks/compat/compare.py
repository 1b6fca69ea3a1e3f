"""Is going through Trimtab the same as going direct?

Every request is sent three times: direct, through Trimtab, direct again. What the two direct answers agree on, the
one in between has to agree with, byte for byte, identifiers and times aside. Where the server contradicts itself
(sampling, a stream cut differently at every run), the shapes have to agree: same members, same types, same sequence
of events.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.compat.exchange import Answer, Ask

__all__ = ["Verdict", "close", "compare", "compare_merged", "compare_values", "masked", "shape"]

# Framing is for one hop like the rest: whoever sends a message frames it. That it is right is checked apart.
_PER_HOP = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "date"})
_REFUSED_HERE = "bad_request"
_OURS = re.compile(r"x-trimtab-|x-request-id$")
_LONGEST = 160


@dataclass
class Verdict:
    """What was found for one request."""

    name: str
    differences: list[str] = field(default_factory=list)
    """What Trimtab changed."""
    varies: list[str] = field(default_factory=list)
    """What the server itself does not say twice the same."""
    adds: list[str] = field(default_factory=list)
    """Names of the fields that Trimtab added to the answer's head."""
    refused: bool = False
    """Whether Trimtab refused by itself, with 400, what the server gives an error for too."""
    status: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def compare(question: Ask, direct: Answer, through: Answer, again: Answer) -> Verdict:
    """Judge one request by its three answers."""
    verdict = Verdict(question.name, status=direct.status)
    if through.status == 400 and through.header("x-trimtab-reason") == _REFUSED_HERE and _refuses(direct, again):
        verdict.refused = True
        return verdict
    for what in ("status", "reason", "whole"):
        seen = [getattr(answer, what) for answer in (direct, through, again)]
        _judge(verdict, what, *seen)
    _compare_headers(verdict, direct, through, again)
    bodies = [masked(answer.body, question.volatile) for answer in (direct, through, again)]
    if bodies[0] == bodies[2]:
        _judge(verdict, "body", *bodies)
    else:
        verdict.varies.append("body")
        _judge(verdict, "shape of the body", *(shape(body) for body in bodies))
    return verdict


def _refuses(*answers: Answer) -> bool:
    """Tell whether no answer is a success: some servers meet what they cannot read with a 500."""
    return all(answer.status >= 400 for answer in answers)


def compare_values(name: str, direct: Any, through: Any, again: Any, volatile: frozenset[str]) -> Verdict:
    """Judge what a client made of three runs of the same call."""
    verdict = Verdict(name)
    if not _got_nothing(through) and (_got_nothing(direct) or _got_nothing(again)):
        # The server broke a kept connection that it was asked on. Trimtab asks again on another, as a proxy should.
        verdict.varies.append("connection")
        return verdict
    seen = [masked(json.dumps(value).encode(), volatile) for value in (direct, through, again)]
    if seen[0] == seen[2]:
        _judge(verdict, "result", *seen)
    else:
        verdict.varies.append("result")
        _judge(verdict, "shape of the result", *(shape(value) for value in seen))
    return verdict


def _got_nothing(value: Any) -> bool:
    """Tell whether a client was left without any answer, its connection broken."""
    return isinstance(value, dict) and str(value.get("error", "")).endswith(("ConnectionError", "ConnectError"))


def compare_merged(question: Ask, direct: Answer, through: Answer, again: Answer) -> Verdict:
    """Judge an answer that was cut out of a batch: the same document, numbers within the ask's tolerance."""
    verdict = Verdict(question.name, status=direct.status)
    for what in ("status", "reason", "whole"):
        _judge(verdict, what, *(getattr(answer, what) for answer in (direct, through, again)))
    # A part has an identifier of its own: the whole answer's names a call, not a request.
    _compare_headers(verdict, *(_anonymous(answer) for answer in (direct, through, again)))
    try:
        documents = [json.loads(masked(answer.body, question.volatile)) for answer in (direct, through)]
    except ValueError:
        _judge(verdict, "body", direct.body, through.body, direct.body)
        return verdict
    verdict.differences += close(*documents, tolerance=question.tolerance)
    return verdict


def close(one: Any, other: Any, *, tolerance: float, path: str = "body") -> list[str]:
    """Where two documents differ; numbers may be `tolerance` of the larger one (at least of 1) apart."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{path}: members {sorted(one)} direct, {sorted(other)} through"]
        return [
            told for key in one for told in close(one[key], other[key], tolerance=tolerance, path=f"{path}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return [f"{path}: {len(one)} elements direct, {len(other)} through"]
        pairs = enumerate(zip(one, other, strict=True))
        told = [t for i, (a, b) in pairs for t in close(a, b, tolerance=tolerance, path=f"{path}[{i}]")]
        return told[:3]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    if numbers and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance):
        return []
    return [] if one == other else [f"{path}: {_short(one)} direct, {_short(other)} through"]


def masked(body: bytes, volatile: Iterable[str]) -> bytes:
    """The body with the values of `volatile` members blanked; everything else, spacing included, as it is."""
    names = b"|".join(re.escape(name).encode() for name in sorted(volatile))
    if not names:
        return body
    member = rb'((?<!\\)"(?:' + names + rb')"\s*:\s*)(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*)'
    return re.sub(member, rb'\1"~"', body)


def shape(body: bytes) -> Any:
    """What a body looks like when its values do not matter: members and types, and the sequence of events.

    Neighbouring events of one shape count once: how many there are is a matter of timing.
    """
    try:
        return _shape(json.loads(body))
    except ValueError:
        pass
    events: list[Any] = []
    for event in _events(body):
        if not events or events[-1] != event:
            events.append(event)
    return events


def _events(body: bytes) -> Iterator[Any]:
    for line in body.splitlines():
        name, colon, value = line.partition(b":")
        text = value if colon and name in (b"data", b"event", b"id", b"retry") else line
        try:
            yield _shape(json.loads(text))
        except ValueError:
            if line.strip():
                yield text.strip().decode(errors="replace")


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        kinds: list[Any] = []
        for inner in map(_shape, value):
            if inner not in kinds:
                kinds.append(inner)
        return kinds
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _compare_headers(verdict: Verdict, direct: Answer, through: Answer, again: Answer) -> None:
    """End-to-end fields, in order, duplicates and spelling included."""
    names = {key.lower() for key, _ in direct.headers}
    added = {key.lower() for key, _ in through.headers} - names
    verdict.adds = sorted(key for key in added if _OURS.match(key))
    if direct.body or through.body:
        _judge(
            verdict,
            "length",
            *(_length(answer).replace("content-length None", "the body's") for answer in (direct, through, again)),
        )
    kept = [_end_to_end(answer, set(verdict.adds)) for answer in (direct, through, again)]
    first, middle, last = ([key for key, _ in fields] for fields in kept)
    _judge(verdict, "header names", first, middle, last)
    if first != middle or first != last:
        return
    for one, ours, two in zip(*kept, strict=True):
        _judge(verdict, f"header {one[0]}", one[1], ours[1], two[1])


def _anonymous(answer: Answer) -> Answer:
    return replace(answer, headers=tuple(field for field in answer.headers if field[0].lower() != "x-request-id"))


def _end_to_end(answer: Answer, without: set[str]) -> list[tuple[str, str]]:
    """The fields that are not for one hop."""
    return [(k, v) for k, v in answer.headers if k.lower() not in _PER_HOP and k.lower() not in without]


def _length(answer: Answer) -> str:
    """Whether a length that is announced is that of the body; to HEAD it is another's, and stays as it is."""
    length = answer.header("content-length")
    if length is None or not answer.body:
        return f"content-length {length}"
    return "the body's" if int(length) == len(answer.body) else f"{length} announced, {len(answer.body)} sent"


def _judge(verdict: Verdict, what: str, direct: Any, through: Any, again: Any) -> None:
    """Where both direct runs agree, ours must too; where they do not, the server varies."""
    if direct != again:
        verdict.varies.append(what)
    elif direct != through:
        verdict.differences.append(f"{what}: {_short(direct)} direct, {_short(through)} through")


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} in all)"
