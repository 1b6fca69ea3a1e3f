"""Message heads that come again, byte for byte but for the length of the body that follows."""

from __future__ import annotations

from typing import Final

__all__ = ["RepeatedHead", "end_of_head"]

_NAME: Final = b"\r\ncontent-length:"
_MAX_DIGITS: Final = 12


class RepeatedHead:
    """A head that a parser has found right before, so that the same bytes need not be parsed again.

    Only the digits of Content-Length may differ, so there is nothing left to disagree on (RFC 9112 section 6).
    """

    __slots__ = ("_after", "_before", "_size", "start")

    def __init__(self, before: bytes, after: bytes | None) -> None:
        self._before = before
        self._after = after
        self._size = len(before)
        self.start = 0
        """Where the body begins in what `end` found to begin with this head."""

    @classmethod
    def of(cls, head: bytes) -> RepeatedHead | None:
        """Remember `head`, which ends with its empty line; None when its length is not plainly written."""
        lower = head.lower()
        at = lower.find(_NAME)
        if at < 0:
            return cls(head, None)
        start = at + len(_NAME)
        end = head.find(b"\r\n", start)
        value = head[start:end]
        digits = value.lstrip(b" ")
        if not digits.isdigit() or lower.find(_NAME, end) >= 0:
            return None
        return cls(head[: end - len(digits)], head[end:])

    @property
    def counted(self) -> bool:
        """Whether it tells the length of what follows."""
        return self._after is not None

    def match(self, data: bytes) -> int:
        """Return where in `data` the body begins, 0 when it is not this head with the whole of its body."""
        return self.start if self.end(data) == len(data) else 0

    def end(self, data: bytes) -> int:
        """Return where the message ends that `data` begins with, perhaps behind its end; 0 when the head is another.

        A head has to be there whole.
        """
        if not data.startswith(self._before):
            return 0
        after, size = self._after, self._size
        if after is None:
            self.start = size
            return size
        # Digit by digit, which needs no copies: compiled, that is half of what searching and slicing costs.
        at, last, length = size, min(len(data), size + _MAX_DIGITS), 0
        while at < last and 0x30 <= (digit := data[at]) <= 0x39:
            length = 10 * length + digit - 0x30
            at += 1
        if at == size or data[at : at + len(after)] != after:
            return 0
        self.start = at + len(after)
        return self.start + length


def end_of_head(data: bytes) -> int:
    """Return where the head ends that `data` begins with, its empty line included; 0 where lines end otherwise."""
    end = data.find(b"\r\n\r\n") + 4
    return end if end >= 5 and data.count(b"\n", 0, end) == data.count(b"\r\n", 0, end) else 0
