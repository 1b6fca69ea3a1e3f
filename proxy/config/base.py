"""What all configuration models share: frozen, strict about keys, and told apart by unit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

__all__ = ["NAME_PATTERN", "UNITS", "Section", "check_url", "nearest", "unit_of"]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Names of pools, policies, laws, wire formats and profiles."""

UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_ratio": "share, 0 to 1",
}
"""What the end of a key says about its value."""


class Section(BaseModel):
    """A part of the configuration: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=False,
    )


_PLAIN = re.compile(r"[!-~]*")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")
"""Names of hosts, and IPv4 addresses; `urlsplit` checks what stands in brackets itself."""


def unit_of(key: str) -> str:
    """Return the unit that the name of `key` promises; "" where it promises none."""
    for suffix, unit in UNITS.items():
        if key.endswith(suffix):
            return unit
    return ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that `word` was most likely meant to be; None when nothing is close."""
    names = sorted(known)
    plain = word.lower().replace("-", "_")
    if plain in names:
        return plain
    found = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    if found:
        return found[0]
    # A key written without its unit, or with another one: `window` for `window_ms`.
    stem = plain.split("_")[0]
    kin = [name for name in names if name.startswith(plain) or name.split("_")[0] == stem]
    return kin[0] if len(kin) == 1 else None


def check_url(value: Any) -> str:
    """Return the base URL `value` without a trailing slash. Raises ValueError when it is not one."""
    text = str(value).strip()
    if not _PLAIN.fullmatch(text):
        raise ValueError(
            "must be printable ASCII without spaces; write other letters as %XX in a path and as xn-- in a name"
        )
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a base URL like http://127.0.0.1:8000")
    if ":" not in parts.hostname and not _NAME.fullmatch(parts.hostname):
        raise ValueError(f"{parts.hostname!r} is neither a host name nor an address")
    if parts.query or parts.fragment:
        raise ValueError("must be a base URL, without a query or fragment")
    if parts.username or parts.password:
        raise ValueError("must not carry credentials; put them under api_key")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("must have a port from 1 to 65535")
    return text.rstrip("/")
