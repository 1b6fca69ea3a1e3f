"""Heads of answers that came whole, so that the same bytes need not be parsed again."""

from __future__ import annotations

from proxy.http.fields import RawHeaders
from proxy.http.heads import RepeatedHead
from proxy.http.response_fields import ResponseFields

__all__ = ["KnownHead"]


class KnownHead:
    """The head of an answer that came whole, and what it means, for the next one that begins with it."""

    __slots__ = ("fields", "headers", "lines", "reason", "repeat", "status")

    def __init__(
        self, repeat: RepeatedHead, status: int, reason: bytes, headers: RawHeaders, fields: ResponseFields
    ) -> None:
        self.repeat = repeat
        self.status = status
        self.reason = reason
        self.headers = headers
        self.fields = fields
        self.lines = fields.lines(headers)
        """The end-to-end lines, each ended by CRLF."""

    @classmethod
    def of(
        cls, head: bytes, status: int, reason: bytes, headers: RawHeaders, fields: ResponseFields
    ) -> KnownHead | None:
        """Remember `head`, which means what the rest says; None unless it tells plainly how long its body is."""
        repeat = RepeatedHead.of(head)
        if repeat is None or not repeat.counted:
            return None
        return cls(repeat, status, reason, headers, fields)
