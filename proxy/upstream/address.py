"""Where an upstream is, in the forms that a request needs."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Address"]

_VERSION = re.compile(r"/v[0-9]+(?:beta)?$")


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL taken apart once."""

    url: str
    host: str
    port: int
    authority: bytes
    """What goes into Host: the default port of the scheme is left out."""
    prefix: bytes
    """The path put before the request's own; empty for none."""
    root: bytes
    """The same without a version at its end (`/v1`): where a server has what belongs to no version."""
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None
    """What its certificate must say; None without TLS."""

    def prefix_for(self, target: bytes) -> bytes:
        """Return what goes before `target`: a version only once, where both have it."""
        version = self.prefix[len(self.root) :]
        if version and target.startswith(version) and target[len(version) : len(version) + 1] in (b"/", b"?", b""):
            return self.root
        return self.prefix

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None = None, tls_name: str | None = None) -> Address:
        """Take `url` apart. `tls` and `tls_name` replace the defaults of https. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no base URL like http://127.0.0.1:8000")
        default = 443 if parts.scheme == "https" else 80
        port = parts.port or default
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = name if port == default else f"{name}:{port}"
        prefix = parts.path.rstrip("/")
        context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        return cls(
            url,
            parts.hostname,
            port,
            authority.encode("idna" if not name.isascii() else "ascii"),
            prefix.encode(),
            _VERSION.sub("", prefix).encode(),
            context,
            None if context is None else tls_name or parts.hostname,
        )
