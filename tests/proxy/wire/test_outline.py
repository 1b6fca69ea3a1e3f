"""A large body is understood by its outline: what small ones say when they are parsed, large ones say too."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.abstract import CLIPPED
from proxy.wire.base import BadRequest, Head
from proxy.wire.outline import MAX_DEPTH, Outline
from proxy.wire.registry import detect
from proxy.wire.weight import PARSED_BYTES, is_light

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
_MEMBERS = st.dictionaries(
    st.text(min_size=1, max_size=10) | st.sampled_from(["model", "stream", "messages"]), _VALUES, max_size=6
)


def outline(body: bytes, units: int = 1_000, max_values: int = 10_000_000) -> Outline:
    """Read a whole body."""
    found = Outline(body, max_values)
    while not found.step(units):
        pass
    return found


def values_of(value: Any) -> int:
    """Count containers and the commas between what they hold."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(values_of, inner))


@given(_MEMBERS, st.integers(1, 50), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_short_members_are_all_there_however_they_are_written(
    members: dict[str, Any], units: int, spaced: bool, escaped: bool
) -> None:
    text = json.dumps(
        members, ensure_ascii=escaped, indent=1 if spaced else None, separators=None if spaced else (",", ":")
    )
    body = f" \n{text}\t ".encode("utf-8", "surrogatepass")
    found = outline(body, units)
    kept = orjson.loads(found.abstract)
    assert kept == {name: value for name, value in orjson.loads(body).items() if name in kept}
    assert all(name in kept for name, value in members.items() if len(json.dumps([name, value], indent=1)) < 64)
    assert found.values == values_of(members) - 1, "the outermost object itself is not counted"


@given(
    st.lists(_VALUES, min_size=1, max_size=8),
    st.text(min_size=1, max_size=20),
    st.integers(0, 40),
    st.integers(1, 2_000),
)
@settings(max_examples=40, deadline=None)
def test_a_long_member_is_cut_anywhere_and_what_is_kept_is_json(
    around: list[Any], piece: str, shift: int, units: int
) -> None:
    long = [{"pad": "x" * shift}, *around, {"role": "user", "content": piece * (2 * CLIPPED)}, *around]
    body = orjson.dumps({"messages": long, "model": "m", "n": 2})
    found = orjson.loads(outline(body, units).abstract)
    assert (found["model"], found["n"]) == ("m", 2)
    kept = found.get("messages")
    assert kept is not None
    for ours, theirs in zip(kept[:-1], long, strict=False):
        assert ours == orjson.loads(orjson.dumps(theirs))
    assert orjson.dumps(long).startswith(orjson.dumps(kept)[:-4]) or len(kept) <= len(long)


@pytest.mark.parametrize("position", ["first", "last", "twice"])
@pytest.mark.parametrize("name", ['"model"', '"mod\\u0065l"'])
def test_the_model_is_found_wherever_it_stands(position: str, name: str) -> None:
    others = ",".join(f'"k{n}":[{n}]' for n in range(40_000))
    model = f'{name} :  "the-one"'
    text = {
        "first": f"{{{model},{others}}}",
        "last": f"{{{others},{model}}}",
        "twice": f'{{"model":"another",{others},{model}}}',
    }[position]
    assert orjson.loads(outline(text.encode()).abstract)["model"] == "the-one"


def test_no_filling_hides_a_member() -> None:
    for size in (10, 65_530, 65_536, 65_537, 200_000):
        for filling in (" ", "\n"):
            gap = filling * size
            body = f'{{"a":{gap}1{gap},{gap}"stream"{gap}:{gap}true{gap},"n"{gap}:{gap}7}}'.encode()
            found = orjson.loads(outline(body).abstract)
            assert (found["stream"], found["n"]) == (True, 7)


@pytest.mark.parametrize("slashes", [*range(8), 4_095, 4_096, 4_097, 70_001, 1_048_575, 1_048_576, 1_048_577])
def test_strings_end_where_they_end(slashes: int) -> None:
    inner = "\\" * (2 * slashes)
    body = f'{{"x":"{inner}","y":"\\"{inner}\\"{{[","model":"m"}}'.encode()
    found = orjson.loads(outline(body).abstract)
    assert found["model"] == "m"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a":[}', "brackets do not match"),
        (b'{"a":[1,2', "ends too early"),
        (b'{"a":"no end', "ends too early"),
        (b'{"a":1} 2', "behind its end"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested deeper"),
    ],
)
def test_what_cannot_be_followed_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        outline(body)


@pytest.mark.parametrize("piece", [b"[],", b"7,", b'{"a":0},', b'"",'])
def test_values_beyond_the_bound_are_refused(piece: bytes) -> None:
    body = b'{"messages":[' + piece * 70_000 + b"0]}"
    outline(body, max_values=300_000)
    with pytest.raises(BadRequest) as refused:
        outline(body, max_values=65_536)
    assert refused.value.code == "too_many_json_values"


@pytest.mark.parametrize(
    "piece", [b"[],", b'{"a":[{}]},', b"1e9,", b'"\\u00e9\\"",', b'"a":{"b":[', b"\xf0\x9f\x98\x80"]
)
def test_the_abstract_is_light_whatever_came(piece: bytes) -> None:
    names = ("messages", "tools", "input", "prompt", "documents", "instances", "texts", "system", "options")
    body = b"{" + b",".join(b'"%b":[%b0]' % (name.encode(), piece * 20_000) for name in names) + b',"model":"m"}'
    try:
        found = outline(body, max_values=1 << 40).abstract
    except BadRequest:
        return
    assert is_light(found)
    assert len(found) <= 300_000
    assert orjson.loads(found)["model"] == "m"


def _parsed(path: str, payload: dict[str, Any]) -> tuple[Any, Any]:
    """Return the call that the whole body is, and the one by its outline."""
    wire, route = detect("POST", path)
    body = orjson.dumps(payload)
    whole = wire.parse(route, Head("POST", path, path, ()), body)
    found = outline(body)
    short = wire.parse(route, Head("POST", path, path, ()), found.abstract)
    found.complete(short, body)
    return whole, short


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "wort " * 300_000}], "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ü" * 900_000}], "max_tokens": 77}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"say {n}"} for n in range(60_000)]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is this?"},
                            {
                                "type": "image_url",
                                "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 200_000},
                            },
                        ],
                    }
                ],
            },
        ),
        (
            "/v1/messages",
            {
                "system": "Be brief.",
                "max_tokens": 9,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "data": "iVBORw0K" * 200_000}},
                            {"type": "text", "text": "What is this? " * 1_000},
                        ],
                    }
                ],
            },
        ),
        ("/v1/completions", {"prompt": "x" * 1_500_000, "n": 3, "max_tokens": 5}),
        ("/v1/completions", {"prompt": [f"number {n}" for n in range(90_000)]}),
        ("/v1/embeddings", {"input": [f"text {n} " * 20 for n in range(9_000)]}),
        ("/v1/embeddings", {"input": [[n % 5_000] * 40 for n in range(5_000)]}),
        ("/v1/embeddings", {"input": list(range(400_000))}),
        ("/v1/responses", {"input": "word " * 300_000, "max_output_tokens": 4}),
        ("/api/chat", {"messages": [{"role": "user", "content": "wort " * 300_000}], "options": {"num_predict": 3}}),
        ("/v1/rerank", {"query": "q", "documents": [f"document {n} " * 10 for n in range(9_000)]}),
    ],
)
def test_a_large_body_is_worth_what_it_would_be_if_it_were_parsed(path: str, payload: dict[str, Any]) -> None:
    payload = {"model": "m", **payload}
    assert not is_light(orjson.dumps(payload))
    whole, short = _parsed(path, payload)
    for name in ("body", "model", "stream", "items", "max_tokens", "route"):
        assert getattr(short, name) == getattr(whole, name), name
    assert short.compat_key is None
    assert short.prompt_tokens == pytest.approx(whole.prompt_tokens, rel=0.5)
    assert whole.text.startswith(short.text[:1_000])


@pytest.mark.parametrize(
    "body", [b"\x1f\x8b" + b"\0" * PARSED_BYTES, b"[" + b"1," * PARSED_BYTES + b"1]", b" " * 2_000_000]
)
def test_what_is_no_object_is_for_the_wire_format_to_judge(body: bytes) -> None:
    found = outline(body)
    assert not found.understood
    assert len(found.abstract) <= 512
