"""Stretches of a large body that are taken in at once tell what its tokens would have told one by one."""

from __future__ import annotations

import random

import pytest

from proxy.wire.base import BadRequest
from proxy.wire.outline import MAX_DEPTH, Outline
from proxy.wire.stretch import STRETCH_BYTES, Stretch

_PIECES = [
    b"[", b"]", b"{", b"}", b"[]", b"{}", b",", b"1,", b'"a"', b'"a":', b'"",', b'"\\"",', b'"\\\\"', b"\\", b'"',
    b" ", b"\0", b"[1,2,3],", b'{"role":"user","content":"hi"},', b"[[[[]]]],", b'"%b",' % (b"x" * 1_023),
    b'"%b",' % (b"x" * 1_025), b"[" * 40 + b"]" * 40 + b",", b'{"a":' * 20 + b"0" + b"}" * 20 + b",",
    b'{"data":"%b"},' % (b"iVBO" * 300), b'{"text":"%b"},' % (b"iVBO" * 300), b'"[{,"',
]  # fmt: skip


def told(body: bytes, units: int, *, by_token: bool = False) -> object:
    """Return everything that is known of a body in the end; `by_token`, if nothing is taken in at once."""
    found = Outline(body, 1_000_000)
    if by_token:
        found._dense_at = len(body) + 1
    try:
        while not found.step(units):
            pass
    except BadRequest as error:
        return error.message
    return found.abstract, found.values, found.tokens, found._media, found._kept._lists


def _bodies(seed: int) -> bytes:
    """Return a body of dense members, well formed or nearly so."""
    rng = random.Random(seed)
    pieces = [*rng.sample(_PIECES, rng.randint(1, 5)), b"[],"]
    if rng.random() < 0.7:
        pieces = [piece for piece in pieces if piece.endswith(b",") or piece == b" "]
    members = []
    for name in rng.sample([b"messages", b"input", b"x", b"tools"], rng.randint(1, 3)):
        inner = b"".join(rng.choices(pieces, k=rng.choice([3, 200, 2_000])))
        members.append(b'"%b":[%b0]' % (name, inner))
    return b"{" + b",".join([*members, b'"model":"m"']) + b"}"


@pytest.mark.parametrize("units", [1, 60, 5_000])
@pytest.mark.parametrize("seed", range(40))
def test_what_is_told_is_the_same_as_token_by_token(seed: int, units: int) -> None:
    # Random bodies, the same ones every time: hypothesis would trace every token.
    body = _bodies(1_000 * units + seed)
    whole, by_token = told(body, units), told(body, 5_000, by_token=True)
    if b"\\" not in body.replace(b'"\\"",', b"").replace(b'"\\\\"', b""):
        assert whole == by_token
    else:
        # A backslash outside of a string is no JSON, and what follows may be read in two ways.
        assert type(whole) is type(by_token) or isinstance(by_token, str) or isinstance(whole, str)


@pytest.mark.parametrize("piece", [b"[],", b'{"a":{}},', b'"",', b'"\\"\\\\",', b"[1,2],", b"0,"])
def test_dense_bodies_are_taken_in_by_the_stretch(piece: bytes) -> None:
    start = b'{"messages":['
    body = start + piece * (4 * STRETCH_BYTES // len(piece)) + b"0]}"
    found = Stretch(body, len(start), len(start) + STRETCH_BYTES, 1_024, 2, MAX_DEPTH)
    assert found.end > len(start) + STRETCH_BYTES - len(piece) - 1


@pytest.mark.parametrize("levels", [2, 10, 900, MAX_DEPTH - 3, MAX_DEPTH - 2, MAX_DEPTH - 1, 3 * MAX_DEPTH])
@pytest.mark.parametrize("pair", [b"[]", b"{}", b"[{}]"])
def test_depth_is_bounded_wherever_it_is_reached(levels: int, pair: bytes) -> None:
    half = len(pair) // 2
    opening = (pair[:half] * levels)[:levels]
    closing = opening.translate(bytes.maketrans(b"[{", b"]}"))[::-1]
    body = b'{"messages":[' + (opening + closing + b",") * 20 + b"0]}"
    too_deep = levels + 2 > MAX_DEPTH
    assert ("nested deeper" in str(told(body, 512))) is too_deep
    assert told(body, 512) == told(body, 512, by_token=True)


@pytest.mark.parametrize(
    "piece", [b"[],", b'"a",', b'{"a":[1,{}]},', b"[" * 900 + b"]" * 900 + b",", b"[{" * 400 + b"}]" * 400 + b","]
)
def test_a_step_goes_no_further_than_a_stretch_or_its_units(piece: bytes) -> None:
    body = b'{"messages":[' + piece * (300_000 // len(piece)) + b"0]}"
    found = Outline(body, 1_000_000)
    before, done = 0, False
    while not done:
        done = found.step(512)
        assert found._at - before <= STRETCH_BYTES + 512
        before = found._at
