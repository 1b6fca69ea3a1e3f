"""Whom a request is for: the authority that it names, and the path by which it is matched (RFC 3986)."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import unquote

__all__ = ["has_dot_segments", "is_authority", "matched_path", "same_authority"]

_NAMED = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(?::([0-9]{0,5}))?")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{0,5}))?")
_DOTS = frozenset({".", ".."})
_SLASHES = re.compile(r"/{2,}")
_PARAMETERS = re.compile(r";[^/]*")


def is_authority(text: str) -> bool:
    """Tell whether `text` may stand in a Host field: a name or an address, perhaps a port, and nobody's user name."""
    found = _NAMED.fullmatch(text)
    if found is not None:
        port = found[1]
    else:
        found = _BRACKETED.fullmatch(text)
        if found is None:
            return False
        try:
            IPv6Address(found[1])
        except AddressValueError:
            return False
        port = found[2]
    return not port or int(port) < 65536


def same_authority(one: str, other: str, scheme: str) -> bool:
    """Tell whether two authorities of URLs with this `scheme` are one: case and its default port say nothing."""
    port = ":443" if scheme == "https" else ":80"
    return _bare(one, port) == _bare(other, port)


def _bare(authority: str, port: str) -> str:
    return authority.lower().removesuffix(port).removesuffix(":")


def matched_path(target: str) -> str:
    """Return the path by which a request for `target` is matched: decoded, and as a lenient server would read it.

    Runs of slashes count as one and parameters of segments as none. Whoever reads it more strictly has no such path,
    so nothing gets by a rule for the plain one. It is sent as it was written.
    """
    path = target.partition("?")[0]
    if "%" in path:
        path = unquote(path, errors="replace")
    if ";" in path:
        path = _PARAMETERS.sub("", path)
    return _SLASHES.sub("/", path) if "//" in path else path


def has_dot_segments(target: str) -> bool:
    """Tell whether a server may find `.` or `..` among the segments of `target`, encoded or behind a backslash."""
    path = target.partition("?")[0]
    if "." not in path and "%" not in path:
        return False
    path = unquote(path, errors="replace").replace("\\", "/")
    return any(segment.partition(";")[0] in _DOTS for segment in path.split("/"))
