"""Locations in an answer that name the upstream itself: they are made from the Host that it was sent."""

from __future__ import annotations

import re

from proxy.upstream.address import Address

__all__ = ["relocated"]

_LINE = re.compile(rb"^((?:content-)?location:[ \t]*)([^\r\n]*?)([ \t]*\r\n)", re.IGNORECASE | re.MULTILINE)
_URL = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


def relocated(lines: bytes, address: Address) -> bytes:
    """Return header lines in which Location and Content-Location lead through the proxy where they name the upstream.

    The scheme, authority and path prefix of the upstream are taken off, so that what is left is relative to where the
    client asked. What names anybody else stays as it is.
    """
    if b"ocation:" not in lines and b"OCATION:" not in lines:
        return lines
    return _LINE.sub(lambda found: found[1] + _relative(found[2], address) + found[3], lines)


def _relative(place: bytes, address: Address) -> bytes:
    url = _URL.match(place)
    if url is not None:
        if url[1].lower() != address.authority.lower():
            return place
        rest = place[url.end() :]
    elif place.startswith(b"/") and not place.startswith(b"//") and address.prefix:
        rest = place
    else:
        return place
    prefix = address.prefix
    if prefix:
        if not rest.startswith(prefix) or rest[len(prefix) : len(prefix) + 1] not in (b"", b"/", b"?", b"#"):
            return place
        rest = rest[len(prefix) :]
    if not rest.startswith(b"/"):
        rest = b"/" + rest
    # Two slashes at the beginning would name a host.
    return b"/." + rest if rest.startswith(b"//") else rest
