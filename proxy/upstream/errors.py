"""How an upstream call can fail, as one small closed set."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["UNREACHABLE", "Failure", "UpstreamError"]


class Failure(StrEnum):
    """Where a call broke."""

    CONNECT = "connect"
    """No connection could be made: nothing was sent."""
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection within the connect timeout: nothing was sent."""
    TLS = "tls"
    """A connection was made and no trust: nothing was sent."""
    CONNECTIONS_BUSY = "connections_busy"
    """All the connections that we allow ourselves stayed busy: nothing was sent, and the upstream is not to blame."""
    NO_DESCRIPTORS = "no_descriptors"
    """We may open no more files: nothing was sent, and the upstream has nothing to do with it."""
    STALE = "stale"
    """A kept connection was closed by the other side before it answered anything."""
    RESET = "reset"
    """The connection broke before the answer was complete."""
    PROTOCOL = "protocol"
    """What came back is not HTTP, or breaks its own framing."""
    REFUSED = "refused"
    """It answered with an error where the client has been promised a stream already."""
    TOO_LARGE = "too_large"
    """The answer is larger than what may be held in memory."""
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    """Too long a pause between two pieces of the answer."""
    TOTAL_TIMEOUT = "total_timeout"


_TIMEOUTS = frozenset(
    {
        Failure.CONNECT_TIMEOUT,
        Failure.CONNECTIONS_BUSY,
        Failure.FIRST_BYTE_TIMEOUT,
        Failure.IDLE_TIMEOUT,
        Failure.TOTAL_TIMEOUT,
    }
)
UNREACHABLE = frozenset({Failure.CONNECT, Failure.CONNECT_TIMEOUT})
"""There is nobody there, for now: nothing was sent, and whoever comes back can be asked."""
_UNSENT = UNREACHABLE | {Failure.TLS, Failure.CONNECTIONS_BUSY, Failure.NO_DESCRIPTORS}


class UpstreamError(Exception):
    """An upstream call that failed. `detail` names what the operating system or the parser said."""

    def __init__(self, failure: Failure, detail: str = "", *, unread: bool = False, kept: bool = False) -> None:
        super().__init__(f"{failure.value}: {detail}" if detail else failure.value)
        self.failure = failure
        self.detail = detail
        self.deaths = 0
        """How many upstreams had read the request, perhaps, and broke off."""
        self.kept = kept or failure is Failure.STALE
        """Whether it is a kept connection's: it ended, or brought what may belong to the exchange before."""
        self.unread = unread or failure in _UNSENT
        """Whether the upstream certainly has not read the request: it was not sent, or came to a closed door."""

    @property
    def is_timeout(self) -> bool:
        """Whether patience ran out, rather than something breaking."""
        return self.failure in _TIMEOUTS

    @property
    def unsent(self) -> bool:
        """Whether the upstream cannot have seen the request."""
        return self.failure in _UNSENT
