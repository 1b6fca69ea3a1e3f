"""Web pages: whose may ask and read (Fetch standard, "CORS protocol"), and by which names."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from backend.api.errors import Forbidden, InvalidRequest

__all__ = ["ORIGIN", "Browsers", "is_local"]

ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_AUTHORITY: Final = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?"
)
_OPEN_PATHS: Final = frozenset({"/health", "/version"})
"""Nothing there is worth a page's trouble, and a probe may use any name."""
_LOCAL_NAMES: Final = (".localhost", ".local", ".internal", ".localdomain")
_SHOWN: Final = "Retry-After, X-Request-Id"
_METHODS: Final = "GET, HEAD, POST"
_MAX_AGE_S: Final = 600


@dataclass(frozen=True)
class Browsers:
    """What is allowed to pages: nothing of other origins by default.

    A page may also have its own name lead to this machine (DNS rebinding), and is no stranger then. So where no key
    is asked for and only this machine is listened to, the worker answers to names of this machine alone.
    """

    origins: frozenset[str] = frozenset()
    """Whose pages may ask and read, in lower case; `*` for all."""
    names_checked: bool = False
    names: frozenset[str] = field(default_factory=frozenset)
    """Other names to answer to, in lower case; `*` for all."""

    @classmethod
    def of(cls, host: str, api_key: str | None, origins: Sequence[str], names: Sequence[str]) -> Browsers:
        """Return what holds for a worker that listens on `host`."""
        allowed = frozenset(name.lower() for name in names)
        checked = api_key is None and is_local(host) and "*" not in allowed
        return cls(frozenset(origin.lower() for origin in origins), checked, allowed)

    def check_host(self, request: web.Request) -> None:
        """Refuse a Host that is none (RFC 9112, section 3.2), or a name that is not ours.

        Raises:
            InvalidRequest: there is not exactly one that may stand there.
            Forbidden: it is not a name to answer to.
        """
        hosts = request.headers.getall("Host", [])
        if len(hosts) > 1 or (not hosts and request.version >= HttpVersion11) or not all(map(_is_authority, hosts)):
            raise InvalidRequest(
                "A request must have exactly one Host field, with a name or an address.", code="invalid_host"
            )
        if self.names_checked and hosts and request.path not in _OPEN_PATHS:
            name = (urlsplit(f"//{hosts[0]}").hostname or "").rstrip(".")
            if not (_is_ours(name) or name in self._own_names):
                raise Forbidden(
                    f"{name[:128]!r} is not a name of this machine: start the worker with --allowed-host to use it, "
                    "or with an API key."
                )

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return self.names | {socket.gethostname().lower(), ""}

    def is_preflight(self, request: web.Request) -> bool:
        """Whether it is a browser's question, which carries neither a key nor a body, and is answered here."""
        return (
            bool(self.origins)
            and request.method == "OPTIONS"
            and "Origin" in request.headers
            and "Access-Control-Request-Method" in request.headers
            and not request.can_read_body
        )

    def preflight(self, request: web.Request) -> web.Response:
        """Answer a preflight. What the page may do `show` adds."""
        if not self._allows(request):
            return web.Response(status=204)
        answer = web.Response(status=204, headers={"Access-Control-Allow-Methods": _METHODS})
        if asked := request.headers.get("Access-Control-Request-Headers"):
            answer.headers["Access-Control-Allow-Headers"] = asked
        answer.headers["Access-Control-Max-Age"] = str(_MAX_AGE_S)
        return answer

    def show(self, request: web.BaseRequest, answer: web.StreamResponse) -> None:
        """Let a page of an allowed origin read an answer, errors included."""
        if not self.origins or "Origin" not in request.headers:
            return
        if "*" in self.origins:
            answer.headers["Access-Control-Allow-Origin"] = "*"
        else:
            answer.headers["Vary"] = "Origin"
            if not self._allows(request):
                return
            answer.headers["Access-Control-Allow-Origin"] = request.headers["Origin"].strip()
        answer.headers["Access-Control-Expose-Headers"] = _SHOWN

    def _allows(self, request: web.BaseRequest) -> bool:
        headers: Mapping[str, str] = request.headers
        return "*" in self.origins or headers["Origin"].strip().lower() in self.origins


def is_local(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_ours(name: str) -> bool:
    """Whether no page can have `name`: an address, or a name that no public server hands out."""
    if name == "localhost" or name.endswith(_LOCAL_NAMES):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_authority(text: str) -> bool:
    if _AUTHORITY.fullmatch(text) is None:
        return False
    try:
        parts = urlsplit(f"//{text}")
        return (parts.port or 0) < 65536 and (not text.startswith("[") or _is_ours(parts.hostname or ""))
    except ValueError:
        return False
