"""Where a request names its model: path, query, JSON, form. Found as a span of bytes, so that nothing else changes.

What two parsers could read in two ways is no name: a member given twice, or in another spelling that some servers
take for the same one (Go's `encoding/json` does not tell `Model` from `model`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import orjson

__all__ = [
    "FORM", "JSON", "LOOK_BACK", "MULTIPART", "TARGET", "Named", "Repeats", "Unclear", "in_form", "in_json",
    "in_part", "in_target", "inflated", "value_at",
]  # fmt: skip

TARGET: Final = 0
JSON: Final = 1
FORM: Final = 2
MULTIPART: Final = 3

_MODEL: Final = "model"
_TOKENS: Final = 50_000
"""Steps that one body is worth: what is nested in more ways than that is refused where its model matters."""
_PLAIN: Final = 8_388_608
"""Bytes that a compressed body may become."""
_MOST_NAMES: Final = 16
"""So often one place may name a model, and always the same."""
_LONGEST_VALUE: Final = 16_384
"""Bytes of a name, as forms spell it."""
_PART_LINE: Final = 8_192
"""Bytes of the field that names a form's part."""
_PART_HEAD: Final = 4_096
"""Bytes of the other fields behind it."""
LOOK_BACK: Final = 16_384
"""So much of a form's part, and the field before it, may have come in earlier pieces."""

_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _nested(inner: bytes) -> bytes:
    return rb'(?:[^"{}\[\]]++|' + _STRING + rb"|\{" + inner + rb"\}|\[" + inner + rb"\])*+"


_FLAT: Final = rb'(?:[^"{}\[\]]++|' + _STRING + rb")*+"
_INSIDE = re.compile(_nested(_nested(_nested(_FLAT))), re.DOTALL)
"""Whatever does not go deeper than three levels: most of a body in one step."""
_KEY = re.compile(rb"[ \t\r\n]*(" + _STRING + rb")[ \t\r\n]*:[ \t\r\n]*", re.DOTALL)
_TEXT = re.compile(_STRING, re.DOTALL)
_DULL = re.compile(
    rb'(?:[ \t\r\n]*+"(?![mM][oO][dD][eE][lL]")[^"\\]*+"[ \t\r\n]*+:[ \t\r\n]*+(?:'
    + _STRING
    + rb"|[^,}\]\"{\[ \t\r\n]++|\{"
    + _nested(_nested(_FLAT))
    + rb"\}|\["
    + _nested(_nested(_FLAT))
    + rb"\])[ \t\r\n]*+,)*+",
    re.DOTALL,
)
"""Members that go no deeper than three levels and have another name, in plain letters."""
_SCALAR = re.compile(rb"[^,}\]\"{\[ \t\r\n]+")
_NEXT = re.compile(rb"[ \t\r\n]*([,}])")
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{[ \t\r\n]*(\})?")
_FIRST = re.compile(rb'\s*\{\s*"model"\s*:\s*("[^"\\]*")')
_ANY_SPELLING = re.compile(rb'"[mM][oO][dD][eE][lL]"\s*:')

_DEPLOYMENT = re.compile(r"(?:/[^?]*)?/openai/deployments/([^/?]+)/[^?]*")
"""Azure."""
_V2 = re.compile(r"(?:/[^?]*)?/v2/models/([^/?]+)(?:/[^?]*)?")
"""KServe and Triton."""
_LISTED = re.compile(r"(?=/v[0-9]++(?:(?:alpha|beta)[0-9]*+)?/models/)")
_ONE_OF_THEM = re.compile(
    r"/v[0-9]++(?:(?:alpha|beta)[0-9]*+)?/models/([^:?]+?)(?:/(?:versions|labels)/[^/?:]+)?(?:/metadata|:[A-Za-z]+)?"
)
"""TensorFlow Serving, Gemini and OpenAI's own."""
_WHOLE_PATHS = (
    re.compile(r"/model/([^/?]+)/(?:invoke|invoke-with-response-stream|converse|converse-stream)"),
    re.compile(r"/predictions/([^/?]+)(?:/[^/?]+)?"),
)
"""Bedrock, TorchServe."""

_QUERY = re.compile(r"[?&](model|deployment)=([^&]*)")
_DISPOSITION = re.compile(rb"\ncontent-disposition:([^\r\n]*)", re.IGNORECASE)
_IS_MODEL = re.compile(rb"[; \t]name=\"?model\"?[; \t]*\Z", re.IGNORECASE)
_BLANK = re.compile(rb"\r?\n\r?\n")
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,70})"?', re.IGNORECASE)


class Unclear(ValueError):
    """The model is named in a way that two servers could understand differently, or in one that nobody could."""


class Named:
    """A model's name and where it stands: `start` to `end` of the target or of the body."""

    __slots__ = ("end", "name", "place", "start")

    def __init__(self, name: str, place: int, start: int, end: int) -> None:
        self.name = name
        self.place = place
        self.start = start
        self.end = end

    def replaced(self, data: bytes, model: str) -> bytes:
        """Return `data`, in which it stands, with `model` in its place and every other byte as it was."""
        if self.place == JSON:
            value = orjson.dumps(model)
        elif self.place == MULTIPART:
            value = model.encode()
        else:
            value = quote(model, safe="").encode()
        return data[: self.start] + value + data[self.end :]


def in_target(target: str) -> list[Named]:
    """Return the names in a raw path and query."""
    found = []
    path, _, _ = target.partition("?")
    match = _in_path(path)
    if match is not None:
        found.append(_in_text(match, 1))
    if "=" in target:
        found += [_in_text(match, 2) for match in _few(_QUERY.finditer(target))]
    return found


def _in_path(path: str) -> re.Match[str] | None:
    """Return the match whose first group is the model, in time that grows with the path and no quicker."""
    match = _DEPLOYMENT.fullmatch(path) or _V2.fullmatch(path)
    if match is None:
        # The last place where it can begin; the one before, if nothing follows that.
        starts = [at.start() for at in _LISTED.finditer(path)][-2:]
        for start in reversed(starts):
            match = match or _ONE_OF_THEM.fullmatch(path, start)
    for pattern in _WHOLE_PATHS:
        match = match or pattern.fullmatch(path)
    return match


def _few(matches: Iterator[re.Match[str]]) -> list[re.Match[str]]:
    """Return all matches. Raises Unclear where there are many."""
    found = list(islice(matches, _MOST_NAMES + 1))
    if len(found) > _MOST_NAMES:
        raise Unclear(f"the request names its model more than {_MOST_NAMES} times")
    return found


def _in_text(match: re.Match[str], group: int) -> Named:
    text = match.string
    start, end = (len(text[:at].encode("utf-8", "surrogateescape")) for at in match.span(group))
    raw = match.group(group)
    if group == 2:
        raw = raw.replace("+", " ")
    return Named(unquote_to_bytes(raw).decode("utf-8", "replace"), TARGET, start, end)


def in_form(body: bytes, start: int = 0, end: int | None = None) -> list[Named]:
    """Return the names that begin from `start` to before `end` in a form as browsers encode it. Raises Unclear."""
    found: list[Named] = []
    if start == 0 and body.startswith(b"model="):
        found.append(_parameter(body, 6))
    last = len(body) if end is None else end + 6
    at = body.find(b"&model=", start, last)
    while at >= 0:
        if len(found) == _MOST_NAMES:
            raise Unclear(f"the form names its model more than {_MOST_NAMES} times")
        found.append(_parameter(body, at + 7))
        at = body.find(b"&model=", found[-1].end, last)
    return found


def _parameter(body: bytes, start: int) -> Named:
    """Return the value of a form's field. Raises Unclear."""
    end = body.find(b"&", start)
    if end < 0:
        end = len(body)
    if end - start > _LONGEST_VALUE:
        raise Unclear("the form names a model without end")
    name = unquote_to_bytes(body[start:end].replace(b"+", b" ")).decode("utf-8", "replace")
    return Named(name, FORM, start, end)


def in_json(body: bytes) -> Named | None:
    """Return the `model` of a JSON object, None where it has none or is no object. Raises Unclear."""
    if b"\0" in body[:4]:
        raise Unclear("the request body is not in UTF-8, so the model it names cannot be found")
    if b"\\u" not in body:
        first = _FIRST.match(body)
        spelled = _ANY_SPELLING.findall(body)
        if not spelled:
            return None
        if first is not None and len(spelled) == 1:
            return value_at(body, first.start(1), first.end(1))
    opening = _OPENING.match(body)
    if opening is None:
        return None
    found: Named | None = None
    seen = False
    at = opening.end()
    steps = 0
    while opening.group(1) is None:
        steps += 1
        dull = _DULL.match(body, at)
        if dull is not None:
            at = dull.end()
        key = _KEY.match(body, at)
        if key is None or steps > _TOKENS:
            raise Unclear("the request body is not JSON in which its model could be found")
        start = key.end()
        at, used = _skip(body, start)
        steps += used
        name = key.group(1)
        if len(name) == 7 or b"\\" in name:
            spelled_as = _text(name)
            if spelled_as is not None and spelled_as.lower() == _MODEL:
                if seen:
                    raise Unclear("the request body names its model twice")
                if spelled_as != _MODEL:
                    raise Unclear(f"the request body says {spelled_as!r}, which some servers take for 'model'")
                seen = True
                found = value_at(body, start, at)
        after = _NEXT.match(body, at)
        if after is None:
            raise Unclear("the request body is not JSON in which its model could be found")
        at = after.end()
        if after.group(1) == b"}":
            break
    return found


def _skip(body: bytes, at: int) -> tuple[int, int]:
    """Return where the value that begins at `at` ends, and how many steps that took. Raises Unclear."""
    opening = body[at : at + 1]
    if opening == b'"':
        text = _TEXT.match(body, at)
        if text is not None:
            return text.end(), 1
    elif opening in (b"{", b"["):
        depth, steps = 1, 0
        at += 1
        while steps < _TOKENS:
            steps += 1
            inside = _INSIDE.match(body, at)
            if inside is not None:
                at = inside.end()
            bracket = body[at : at + 1]
            at += 1
            if bracket in (b"{", b"["):
                depth += 1
            elif bracket in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return at, steps
            else:
                break
    else:
        scalar = _SCALAR.match(body, at)
        if scalar is not None:
            return scalar.end(), 1
    raise Unclear("the request body is not JSON in which its model could be found")


def value_at(body: bytes, start: int, end: int) -> Named | None:
    """Return the name that a member's value is, None for null. Raises Unclear."""
    raw = body[start:end]
    if raw == b"null":
        return None
    name = _text(raw)
    if name is None:
        raise Unclear("'model' must be a string")
    return Named(name, JSON, start, end)


def _text(raw: bytes) -> str | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is str else None


def in_part(content_type: str, data: bytes | bytearray, start: int = 0, *, whole: bool = False) -> Named | None:
    """Return the first `model` field from `start` in the beginning of a multipart body; None while there is none yet.

    Raises Unclear where there cannot be one.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise Unclear("the multipart body has no boundary")
    begin = _value_of_model(data, start)
    if begin < 0:
        return None
    end = data.find(b"\r\n--" + boundary.group(1).encode("latin-1"), begin)
    if end < 0:
        if whole or len(data) - begin > 1024:
            raise Unclear("the 'model' field of the form has no end")
        return None
    value = data[begin:end]
    try:
        named = Named(value.decode(), MULTIPART, begin, end)
    except UnicodeDecodeError:
        raise Unclear("the 'model' field of the form is not in UTF-8") from None
    if _value_of_model(data, end) >= 0:
        raise Unclear("the form names its model twice")
    return named


def _value_of_model(data: bytes | bytearray, start: int) -> int:
    """Return where the value of the next `model` field begins, behind the blank line; -1 where none does.

    Raises Unclear where a part's head is longer than could be followed from piece to piece.
    """
    for line in _DISPOSITION.finditer(data, start):
        end = line.end()
        if end - line.start() > _PART_LINE:
            raise Unclear("a part of the form has too long a head to find its model in")
        if _IS_MODEL.search(line.group(1)) is not None:
            blank = _BLANK.search(data, end)
            if (len(data) if blank is None else blank.start()) - end > _PART_HEAD:
                raise Unclear("the 'model' field of the form has too long a head")
            return -1 if blank is None else blank.end()
    return -1


class Repeats:
    """Looks for another `model` field in what follows of a multipart body."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def check(self, piece: bytes) -> None:
        """Look at the next piece. Raises Unclear."""
        data = self._tail + piece
        if _value_of_model(data, 0) >= 0:
            raise Unclear("the form names its model twice")
        self._tail = data[-LOOK_BACK:]


def inflated(body: bytes, coding: bytes) -> bytes:
    """Return what a compressed body says. Raises Unclear where that cannot be told within bounds."""
    if coding.strip().lower() not in (b"gzip", b"x-gzip", b"deflate"):
        raise Unclear("the request body is compressed in a way that is not read, so its model cannot be found")
    stream = zlib.decompressobj(47)
    try:
        plain = stream.decompress(body, _PLAIN)
    except zlib.error:
        raise Unclear("the request body is not what its Content-Encoding says") from None
    if not stream.eof or stream.unused_data:
        raise Unclear("the request body is too large, or not one compressed document, so its model cannot be found")
    return plain
