"""What a large JSON body says on the outside, found without parsing it: in short steps, in little memory.

A parsed body takes up to thirty times its bytes, and parsing holds up everybody for as long as it lasts. So only
small bodies are parsed. Of others this module keeps an abstract, a small JSON object with the same short members and
the beginnings of the long ones, which the wire formats read in place of the body; and it counts what they would have
counted. The body itself is never changed: it goes on as it came.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.wire.abstract import CLIPPED, Abstract, clipped, is_medium, is_wanted, name_in
from proxy.wire.base import BadRequest, Call
from proxy.wire.naming import Named, Unclear, value_at
from proxy.wire.prompt import BYTES_PER_TOKEN, TOKENS_PER_MEDIUM
from proxy.wire.stretch import STRETCH_BYTES, Stretch

__all__ = ["MAX_DEPTH", "MAX_MEMBERS", "STEP", "Outline"]

STEP: Final = 512
"""So many units of a large body are looked at between two turns of the loop: a millisecond or two, from source."""
MAX_DEPTH: Final = 1024
"""Levels of nesting, which is what the parser of small bodies takes too."""

_MAX_NAME: Final = 64
MAX_MEMBERS: Final = 65_536
"""Members of the outermost object: each costs more than a token, and nobody has so many."""
_WINDOW: Final = 65_536
"""Bytes looked through by one search."""
_STRING_WINDOW: Final = 1_048_576
_UNIT: Final = 256
"""Bytes that cost as much as one token."""
_DENSE_UNIT: Final = 16
"""The same where nearly every byte is a token, taken in at once."""
_MEMBER_UNITS: Final = 4
"""What an outermost member costs beside its tokens."""
_LEAST_STRETCH: Final = 512
_ESCAPES_WINDOW: Final = 4_096
"""Bytes, at worst half as many escapes."""
_LONG: Final = 1_024
"""A string of fewer bytes is text, whatever it stands for."""
_SAMPLE: Final = 512

_TOKEN = re.compile(rb'["\[\]{}]')
_SPACES = re.compile(rb"[ \t\r\n]*")
_WORD = re.compile(rb"[^ \t\r\n,]*")
_ESCAPES = re.compile(rb'(?:[^"\\]*+\\.)*+', re.DOTALL)
_QUOTE: Final = 0x22
_OPENING_LIST: Final = 0x5B
_OPENING_OBJECT: Final = 0x7B
_BACKSLASH: Final = 0x5C
_CLOSING_LIST: Final = 0x5D
_CLOSING_OBJECT: Final = 0x7D

_NOTHING = (0, 0)
_BROKEN: Final = "the request body is not valid JSON: "


class Outline:
    """Reads one body in steps. Nothing is known before `step` has returned True.

    Raises BadRequest where brackets do not match, strings do not end, or there is more than may be: nesting beyond
    MAX_DEPTH, more than MAX_MEMBERS members, or more than `max_values` values. What else is malformed is for the
    upstream to say.
    """

    __slots__ = (
        "_abstract", "_at", "_body", "_clip_at", "_closers", "_dense_at", "_elements", "_escaped", "_in_string",
        "_kept", "_last", "_max_values", "_media", "_member", "_model", "_models", "_named", "_reach", "_shown",
        "_start", "_string_at", "_text_bytes", "_value_end", "understood", "values",
    )  # fmt: skip

    def __init__(self, body: bytes, max_values: int) -> None:
        self._body = body
        self._max_values = max_values
        self._at = 0
        self._closers: list[int] = []
        """What closes the brackets that are open, innermost last."""
        self._in_string = False
        self._string_at = 0
        """Where the string began that is read, its quote included."""
        self._escaped = 0
        """1 if a backslash, itself not escaped, stands before the place from which a search goes on."""
        self._last: tuple[int, int] = _NOTHING
        """The latest string, without its quotes, while nothing but space and a colon has come after it."""
        self._member: bytes | None = None
        """The outermost member whose value is awaited or read, b"" for one of no interest; None between two."""
        self._start = -1
        """Where that value begins; -1 while it is awaited."""
        self._value_end = -1
        """Where it ends, space behind it left out; -1 while that is not known."""
        self._clip_at = -1
        """Where it is cut off, if it is longer; -1 when that is done."""
        self._abstract = b""
        """Its beginning, as a value of its own, once it was cut off."""
        self._shown = 0
        """How many elements of a list that holds."""
        self._elements = 0
        """Commas between the elements of the list that it is."""
        self._kept = Abstract()
        self._dense_at = 0
        """From where on stretches may be taken in at once again."""
        self._reach: int = STRETCH_BYTES
        """How far the next one may go."""
        self._named = 0
        """Outermost members so far."""
        self._text_bytes = self._media = 0
        self._model = b""
        """How the latest member is spelled that some server takes for `model`."""
        self._models: list[tuple[int, int]] = []
        """Where the values of such members stand."""
        self.understood = True
        """Whether it is an object at all, and not compressed or something else."""
        self.values = 0
        """Commas and containers so far."""

    # -- reading -------------------------------------------------------------------------------------------

    def step(self, units: int) -> bool:
        """Read on for about `units` tokens, or 256 bytes that hold none for each. Returns whether that was all."""
        body, size = self._body, len(self._body)
        if self._at == 0:
            first = _end_of_space(body, 0, min(size, _WINDOW))
            if first >= size or body[first] != _OPENING_OBJECT:
                self.understood = False
                return True
            self._closers.append(_CLOSING_OBJECT)
            self._at = first + 1
        while units > 0:
            began = self._at
            if not self._closers:
                if began >= size:
                    return True
                self._at = _end_of_space(body, began, min(size, began + _WINDOW))
                if self._at == began:
                    raise BadRequest(_BROKEN + "it goes on behind its end", code="invalid_json")
            elif began >= size:
                raise BadRequest(_BROKEN + "it ends too early", code="invalid_json")
            elif self._in_string:
                self._string(body, size)
            elif began >= self._dense_at and len(self._closers) > 1:
                units -= self._stretch(body, size)
                continue
            else:
                named = self._named
                self._outside(body, size)
                units -= _MEMBER_UNITS * (self._named - named)
            units -= 1 + (self._at - began) // _UNIT
        return False

    def _stretch(self, body: bytes, size: int) -> int:
        """Take in at once what stands inside an outermost member, if that can be done. Returns the units it cost."""
        at, closers = self._at, self._closers
        limit = min(size, at + self._reach)
        if at <= self._clip_at < limit:
            limit = self._clip_at
        if limit - at < _LEAST_STRETCH:
            self._dense_at = limit + 1
            return 0
        found = Stretch(body, at, limit, _LONG, len(closers), MAX_DEPTH)
        kept = len(closers) - len(found.closed)
        if found.end == at or bytes(closers[: kept - 1 : -1]) != found.closed:
            if self._reach > _LEAST_STRETCH:
                self._reach //= 4
            else:
                self._reach = STRETCH_BYTES
                self._dense_at = limit
        else:
            del closers[kept:]
            for byte in found.opened:
                closers.append(_CLOSING_LIST if byte == _OPENING_LIST else _CLOSING_OBJECT)
            self._at = found.end
            self._last = _NOTHING
            self._text_bytes += found.text_bytes
            self._elements += found.outer_commas
            self._count(found.commas + found.containers)
        return 1 + (limit - at) // _DENSE_UNIT

    def _outside(self, body: bytes, size: int) -> None:
        """Go on behind the next bracket or quote, at most a window away."""
        at = self._at
        end = min(size, at + _WINDOW)
        found = _TOKEN.search(body, at, end)
        token: int = end if found is None else found.start()
        if token > at:
            self._gap(body, at, token)
        if found is None:
            self._at = end
            return
        if 0 <= self._clip_at <= token:
            self._clip(body)
        self._at = token + 1
        kind, depth = body[token], len(self._closers)
        if kind == _QUOTE:
            if depth == 1 and self._start < 0 and self._member is not None:
                self._begin(token)
            self._in_string = True
            self._string_at = token
            self._escaped = 0
        elif kind in (_OPENING_LIST, _OPENING_OBJECT):
            if depth == 1 and self._start < 0:
                self._begin(token)
            if depth >= MAX_DEPTH:
                text = f"the request body is nested deeper than {MAX_DEPTH} levels"
                raise BadRequest(text, code="invalid_json", certain=False)
            self._closers.append(_CLOSING_LIST if kind == _OPENING_LIST else _CLOSING_OBJECT)
            self._last = _NOTHING
            self._count(1)
        else:
            if self._closers.pop() != kind:
                raise BadRequest(_BROKEN + "its brackets do not match", code="invalid_json")
            self._last = _NOTHING
            if depth == 1:
                self._close(body, token)
            elif depth == 2:
                self._value_end = token + 1

    def _gap(self, body: bytes, at: int, token: int) -> None:
        """Take in what stands between two tokens: numbers, words, commas, colons and space."""
        commas = body.count(b",", at, token)
        depth = len(self._closers)
        if commas:
            self._count(commas)
            if depth == 2:
                self._elements += commas
        if depth == 1:
            self._between(body, at, token, commas)
        elif self._last[1] and (commas or body.find(b":", at, token) < 0):
            self._last = _NOTHING

    def _between(self, body: bytes, at: int, token: int, commas: int) -> None:
        """Tell outermost members apart: a string is a name if a colon follows, and a comma ends a value."""
        if self._start < 0:
            if self._member is None:
                colon = body.find(b":", at, token) if self._last[1] else -1
                if colon < 0:
                    return
                self._name(body, *self._last)
                at = colon + 1
            at = _end_of_space(body, at, token)
            if at < token:
                # A number or a word; strings and containers begin with their token.
                self._begin(at)
                word = _WORD.match(body, at, token)
                if word is not None and word.end() < token:
                    self._value_end = word.end()
        comma = body.find(b",", at, token) if commas else -1
        if comma >= 0:
            self._close(body, comma)

    def _string(self, body: bytes, size: int) -> None:
        """Go on behind the end of a string, or the next quote in it, at most a window away."""
        at = self._at
        end = min(size, at + _STRING_WINDOW)
        quote = body.find(b'"', at, end)
        stop = end if quote < 0 else quote
        back = stop
        while back > at and body[back - 1] == _BACKSLASH:
            back -= 1
            if stop - back == _UNIT:
                back = at + len(body[at:back].rstrip(b"\\"))
                break
        self._escaped = (stop - back + (self._escaped if back == at else 0)) & 1
        if quote < 0:
            self._at = end
            return
        self._at = quote + 1
        if self._escaped:
            # Where one is, there may be many.
            self._escaped = 0
            more = _ESCAPES.match(body, quote + 1, min(size, quote + _ESCAPES_WINDOW))
            if more is not None:
                self._at = more.end()
            return
        if 0 <= self._clip_at <= quote:
            self._clip(body)
        self._in_string = False
        self._ended(body, self._string_at + 1, quote)

    def _ended(self, body: bytes, start: int, end: int) -> None:
        """Take in a string that has ended."""
        length = end - start
        if length >= _LONG and self._is_medium(body, start):
            self._media += 1
        else:
            self._text_bytes += length
        if len(self._closers) == 1 and self._start >= 0:
            self._last = _NOTHING
            self._value_end = end + 1
        else:
            self._last = (start, end)

    def _is_medium(self, body: bytes, start: int) -> bool:
        """Tell a picture or a sound from text, by the member that it is and how it begins."""
        name, before, after = self._member, self._last[0], self._last[1]
        if after:
            name = body[before:after] if after - before <= _MAX_NAME else None
        elif len(self._closers) > 2:
            name = None
        return is_medium(name, body[start : start + _SAMPLE])

    def _count(self, values: int) -> None:
        self.values += values
        if self.values > self._max_values:
            text = f"the request body holds more than {self._max_values} JSON values"
            raise BadRequest(text, code="too_many_json_values")

    # -- keeping -------------------------------------------------------------------------------------------

    def _name(self, body: bytes, start: int, end: int) -> None:
        """Take the name of an outermost member."""
        self._named += 1
        if self._named > MAX_MEMBERS:
            text = f"the request body has more than {MAX_MEMBERS} members"
            raise BadRequest(text, code="invalid_json", certain=False)
        name = name_in(body[start:end]) if end - start <= _MAX_NAME else b""
        self._member = name
        self._last = _NOTHING

    def _begin(self, at: int) -> None:
        """The value of an outermost member begins."""
        self._start = at
        self._clip_at = at + CLIPPED
        self._value_end = -1
        self._abstract = b""
        self._shown = self._elements = 0

    def _clip(self, body: bytes) -> None:
        """Keep the beginning of a value that goes on, closed as if it ended there."""
        start, cut = self._start, self._clip_at
        self._clip_at = -1
        if start >= 0 and is_wanted(self._member):
            closers = bytes(self._closers[:0:-1])
            self._abstract, self._shown = clipped(body[start:cut], closers, in_string=self._in_string)

    def _close(self, body: bytes, end: int) -> None:
        """The value of an outermost member has ended."""
        start, member = self._start, self._member
        if self._value_end >= 0:
            end = self._value_end
        self._start = self._clip_at = -1
        self._member = None
        self._last = _NOTHING
        if start < 0 or not member:
            return
        if member.lower() == b"model":
            self._model = member
            self._models = [*self._models[-1:], (start, end)]
        if self._kept.offer(member, end - start):
            value = self._abstract if end - start > CLIPPED else body[start:end].strip()
            self._kept.keep(member, value, self._elements + 1, self._shown)

    # -- what was found ------------------------------------------------------------------------------------

    @property
    def abstract(self) -> bytes:
        """A small body that says what the large one does; of one that is no object, the beginning."""
        if not self.understood:
            start = self._body[:_SAMPLE].lstrip()
            return b"[]" if start[:1] == b"[" else start
        return self._kept.text

    @property
    def tokens(self) -> int:
        """The estimated tokens of all text and numbers, and of pictures as far as they can be told."""
        return self._text_bytes // BYTES_PER_TOKEN + self.values + TOKENS_PER_MEDIUM * self._media + 1

    @property
    def named(self) -> Named | None:
        """Where the body names its model, None where it names none. Raises Unclear."""
        if len(self._models) > 1:
            raise Unclear("the request body names its model twice")
        if not self._models:
            return None
        if self._model != b"model":
            raise Unclear(f"the request body says {self._model!r:.40}, which some servers take for 'model'")
        return value_at(self._body, *self._models[0])

    def complete(self, call: Call, body: bytes) -> None:
        """Make `call`, which was read from the abstract, one of the whole `body`: sent as it came, never merged."""
        call.body = body
        call.compat_key = None
        if self.understood:
            call.prompt_tokens = self.tokens
        kept = call.extra.get("items")
        if type(kept) is list:
            call.items = self._kept.whole_list(len(kept), call.items)
        call.extra = {}


def _end_of_space(body: bytes, at: int, end: int) -> int:
    found = _SPACES.match(body, at, end)
    return at if found is None else found.end()
