"""Cross-origin requests of web pages (Fetch standard, "CORS protocol"): preflights, and who may read an answer.

Without a `cors` section answers are the upstream's own in this, too: its preflights are relayed, also where API keys
are asked for, since browsers send none with a preflight; and what we refuse may be read by any page once the
upstream has shown that its own answers may.
"""

from __future__ import annotations

from proxy.config.access import CorsConfig
from proxy.http.request_fields import RequestFields

__all__ = ["ANY_ORIGIN", "Cors", "is_preflight"]

ANY_ORIGIN = b"Access-Control-Allow-Origin: *\r\n"
_ALLOWED = b"access-control-allow-origin:"


def is_preflight(fields: RequestFields, length: int | None) -> bool:
    """Whether an OPTIONS request is a browser's question, which carries neither a credential nor a body."""
    return (
        not length
        and fields.get(b"transfer-encoding") is None
        and fields.get(b"origin") is not None
        and fields.get(b"access-control-request-method") is not None
    )


class Cors:
    """Answers for the origins that a configuration allows."""

    __slots__ = ("_any", "_headers", "_methods", "_origins", "_shown")

    def __init__(self, config: CorsConfig) -> None:
        self._any = "*" in config.allow_origins
        self._origins = frozenset(origin.lower().encode("latin-1") for origin in config.allow_origins)
        self._headers = None if "*" in config.allow_headers else ", ".join(config.allow_headers).encode("latin-1")
        self._methods = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: %d\r\n" % (
            ", ".join(config.allow_methods).encode("latin-1"),
            int(config.max_age_s),
        )
        exposed = ", ".join(config.expose_headers).encode("latin-1")
        self._shown = b"Access-Control-Expose-Headers: %b\r\n" % exposed if exposed else b""
        if config.allow_credentials:
            allowed = b"Access-Control-Allow-Credentials: true\r\n"
            self._methods = self._methods + allowed
            self._shown = self._shown + allowed

    @classmethod
    def of(cls, config: CorsConfig) -> Cors | None:
        """Return the one that is configured; None where the upstream's own answers decide."""
        return cls(config) if config.allow_origins else None

    def allows(self, origin: bytes) -> bool:
        """Whether pages of `origin` may ask and read."""
        return self._any or origin.strip().lower() in self._origins

    def preflight(self, fields: RequestFields) -> bytes:
        """Return the lines of the answer to a preflight, each ended by CRLF; few for an origin that may not."""
        origin = fields.get(b"origin") or b""
        if not self.allows(origin):
            return b"Vary: Origin\r\n"
        headers = self._headers
        if headers is None:
            headers = fields.get(b"access-control-request-headers") or b""
        named = b"Access-Control-Allow-Headers: %b\r\n" % headers if headers else b""
        return self._origin(origin) + named + self._methods

    def lines(self, origin: bytes | None, lines: bytes) -> bytes:
        """Return what an answer with `lines` needs on top for a page of `origin`; b"" where the upstream said it."""
        if origin is None or _ALLOWED in lines.lower():
            return b""
        if not self.allows(origin):
            return b"Vary: Origin\r\n"
        return self._origin(origin) + self._shown

    def _origin(self, origin: bytes) -> bytes:
        if self._any:
            return ANY_ORIGIN
        return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin.strip()
