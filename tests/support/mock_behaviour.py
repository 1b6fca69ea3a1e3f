"""What the mock upstream is told to do with a request, and what it saw of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tests.support.http_message import HttpMessage

__all__ = ["Behaviour", "Seen", "known"]


@dataclass(frozen=True)
class Behaviour:
    """What to do with one request. Times are seconds."""

    delay: float = 0.0
    """Before the head of the answer."""
    gap: float = 0.0
    """Between the events of a stream."""
    tokens: int = 4
    """Events of a stream, tokens of an answer."""
    width: int = 0
    """Characters added to each event of a chat's stream."""
    status: int = 200
    reason: str | None = None
    """The reason phrase, which may be empty."""
    headers: list[list[str]] = field(default_factory=list)
    """Added to the answer's head."""
    retry_after: str | None = None
    cut_at: int | None = None
    """Break off after so many bytes of the body as written, framing included."""
    reset: bool = False
    """Whether breaking off is a reset rather than a plain close."""
    stall_at: int | None = None
    """Say nothing more after so many bytes of the body."""
    reset_before_head: bool = False
    close_before_head: bool = False
    garbage: bool = False
    """Answer with something that is no HTTP."""
    hang: bool = False
    """Never answer."""
    framing: str = "auto"
    """length, chunked, close, or auto: chunked for streams, length for the rest."""
    shuffle: bool = False
    """Results of a list in another order, `index` telling which is which."""
    results: int | None = None
    """So many results, whatever was asked for."""
    merged_results: int | None = None
    """So many results where more than one was asked for."""
    poison: list[str] = field(default_factory=list)
    """Inputs that make the whole call fail, with status `poison_status`."""
    poison_status: int = 400
    close: bool = False
    """Say `Connection: close`."""
    drop_idle: bool = False
    """Close the connection right after the answer, without having said so."""
    body: str | None = None
    """Answer with exactly this body."""
    body_size: int | None = None
    """Answer with so many bytes."""
    encoding: str | None = None
    """Content-Encoding to claim for it."""
    echo: bool = False
    """Answer with the request's own body."""
    interim: int | None = None
    """Send this 1xx status first."""
    trailers: list[list[str]] = field(default_factory=list)
    answer_early: bool = False
    """Answer before the request's body has been read."""
    junk: str | None = None
    """Written behind the answer, in one piece with its end: nobody asked for it."""
    drip: float = 0.0
    """Write the body in pieces of 16 bytes with so many seconds between them, each chunk or event cut as it comes."""
    gate: str | None = None
    """Wait for `MockUpstream.open(name)` before the head."""


@dataclass
class Seen(HttpMessage):
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    connection: int = 0
    at: float = 0.0
    aborted_at: float | None = None
    """When the other side closed before the answer was complete (monotonic)."""
    finished: bool = False
    ended_at: float = 0.0
    """When its answer was written whole (monotonic); 0 while it is not."""
    status: int = 0
    """What it was answered with; 0 for nothing."""
    how: Behaviour = field(default_factory=Behaviour)
    """How it was to be treated."""
    continued: bool = False
    trailers: list[tuple[str, str]] = field(default_factory=list)


_NAMES = {f.name for f in fields(Behaviour)}


def known(given: dict[str, Any]) -> dict[str, Any]:
    """Return `given`; raises ValueError if it has keys that `Behaviour` has not."""
    unknown = given.keys() - _NAMES
    if unknown:
        raise ValueError(f"unknown behaviour {sorted(unknown)}; known are {sorted(_NAMES)}")
    return given
