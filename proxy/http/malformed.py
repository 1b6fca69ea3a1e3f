"""What is said to a client whose request could not be read, before the connection closes."""

from __future__ import annotations

from aiohttp.http_exceptions import LineTooLong

from proxy.http.fields import lines_of
from proxy.http.reply import head_bytes
from proxy.outcome import BadInput, HeadersTooLarge, Outcome, to_reply
from proxy.wire.registry import wire_format

__all__ = ["last_words", "refusal_of"]


def refusal_of(error: BaseException | None, message: str) -> Outcome:
    """Return what aiohttp's parser means by `error`, of which `message` says more."""
    too_long = isinstance(error, LineTooLong) or "Too many" in (message or "")
    return HeadersTooLarge() if too_long else BadInput("The request is malformed.")


def last_words(outcome: Outcome) -> bytes:
    """Return a whole answer that closes the connection; nobody knows of which protocol the request was."""
    code, fields, body = to_reply(outcome, wire_format("openai"), "-")
    return head_bytes(code, None, lines_of(fields), length=len(body), close=True) + body
