"""What is kept of a large JSON object: its short members, and the beginnings of the long ones that are asked for."""

from __future__ import annotations

import re
from typing import Final

import orjson

from proxy.wire.weight import is_light

__all__ = ["CLIPPED", "Abstract", "clipped", "is_medium", "is_wanted", "name_in"]

CLIPPED: Final = 49_152
"""Bytes that are kept of the beginning of a long member."""
_TINY: Final = 1_024
"""A member of so many bytes is always kept, if a wire format asks for it."""
_KEPT_BYTES: Final = 131_072
"""So much is kept of longer members in all."""
_MAX_OTHERS: Final = 64
"""So many members are kept that no wire format asks for, each of them tiny."""
_COMMA: Final = 0x2C
_WANTED = frozenset(
    {
        b"best_of", b"conversation", b"documents", b"input", b"inputs", b"instances", b"instructions",
        b"max_completion_tokens", b"max_output_tokens", b"max_tokens", b"messages", b"model", b"n", b"options",
        b"parameters", b"previous_response_id", b"prompt", b"query", b"sampling_params", b"store", b"stream",
        b"stream_options", b"system", b"text", b"text_input", b"texts", b"tools",
    }
)  # fmt: skip
"""Members that wire formats read: kept however many others there are."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_-]*")
_TEXT = frozenset(
    {
        b"arguments", b"content", b"input", b"inputs", b"instructions", b"prompt", b"query", b"reasoning_content",
        b"system", b"text", b"text_input", b"thinking",
    }
)  # fmt: skip
"""Members whose strings are text, however they look; others may hold a picture or a sound."""


def name_in(text: bytes) -> bytes:
    """Return the name that a JSON string without its quotes spells, b"" where it spells none."""
    if b"\\" not in text:
        return text
    try:
        return str(orjson.loads(b'"' + text + b'"')).encode()
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return b""


def is_wanted(member: bytes | None) -> bool:
    """Tell whether some wire format reads the outermost member of this name."""
    return member in _WANTED


def is_medium(member: bytes | None, sample: bytes) -> bool:
    """Tell a picture or a sound from text, by the member that it is (None: not known) and how it begins."""
    if member in _TEXT:
        return False
    return sample.startswith(b"data:") or _BASE64.fullmatch(sample) is not None


class Abstract:
    """The members that were kept, within bounds whatever comes."""

    __slots__ = ("_kept_bytes", "_lists", "_members", "_others")

    def __init__(self) -> None:
        self._members: dict[bytes, bytes] = {}
        self._lists: dict[bytes, tuple[int, int]] = {}
        """How many elements long lists have, and how many of those are kept."""
        self._others = self._kept_bytes = 0

    def offer(self, member: bytes, size: int) -> bool:
        """Forget what was kept under this name, and tell whether a value of `size` bytes may be kept now."""
        before = self._members.pop(member, None)
        self._lists.pop(member, None)
        if before is not None:
            self._kept_bytes -= len(before)
        elif member not in _WANTED:
            self._others += 1
            return self._others <= _MAX_OTHERS and size <= _TINY
        return True

    def keep(self, member: bytes, value: bytes, elements: int, shown: int) -> None:
        """Keep `value` if there is room: of a list of `elements` that was cut off, `shown` are left, else 0."""
        if not value or (len(value) > _TINY and self._kept_bytes + len(value) > _KEPT_BYTES):
            return
        self._kept_bytes += len(value)
        self._members[member] = value
        if shown:
            self._lists[member] = (elements, shown)

    def whole_list(self, shown: int, items: int) -> int:
        """Return what `items`, counted in a list of which `shown` elements are left, are in the whole one."""
        for elements, left in self._lists.values():
            if left == shown:
                items = items * elements // left
        return items

    @property
    def text(self) -> bytes:
        """A small JSON object of the members, light enough to be parsed."""
        members = [
            b"%b:%b" % (orjson.dumps(name.decode("utf-8", "replace")), value) for name, value in self._members.items()
        ]
        whole = b"{%b}" % b",".join(members)
        if is_light(whole):
            return whole
        return b"{%b}" % b",".join([member for member in members if len(member) <= _TINY])


def clipped(text: bytes, closers: bytes, *, in_string: bool) -> tuple[bytes, int]:
    """Close a value of which `text` is the beginning, as if it ended there; `closers` close what is open in it.

    Returns the value, b"" where none can be made, and how many elements it has, 0 if it is no list.
    """
    for candidate in _inside(text) if in_string else _outside(text):
        try:
            value = orjson.loads(candidate + closers)
        except orjson.JSONDecodeError:
            continue
        return candidate + closers, len(value) if type(value) is list else 0
    return b"", 0


def _inside(text: bytes) -> list[bytes]:
    """Return ways to end a value that was cut off inside a string."""
    text = text.decode("utf-8", "ignore").encode()
    whole = []
    for _ in range(2):
        # An escape may have been cut in two, and so may a pair of them.
        slash = text.rfind(b"\\", max(0, len(text) - 6))
        if slash >= 0:
            text = text[:slash].rstrip(b"\\")
        if not text.endswith(b'"'):
            whole.append(text + b'"')
    before = text[: max(0, text.rfind(b'"'))].rstrip(b" \t\r\n,")
    return [*whole, before]


def _outside(text: bytes) -> list[bytes]:
    """Return ways to end a value that was cut off between two tokens."""
    last = max(
        text.rfind(b","), text.rfind(b'"'), text.rfind(b"["), text.rfind(b"{"), text.rfind(b"]"), text.rfind(b"}")
    )
    if last < 0:
        return []
    whole = text[:last] if text[last] == _COMMA else text[: last + 1]
    return [whole, text[: max(0, text.rfind(b","))]]
