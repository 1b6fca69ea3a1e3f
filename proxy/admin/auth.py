"""Who may use the admin API: a bearer token, or on loopback nobody's web page."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from proxy.admin.pages import is_page
from proxy.admin.problem import ApiError
from proxy.admin.requests import HOLDER
from proxy.config.model import AdminConfig, is_loopback
from proxy.http.target import is_authority

__all__ = ["OPEN_PATHS", "guard"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths for probes and scrapers, which need no token. Metrics name tenants and models: no web page may read them."""

_METRICS = "/metrics"
_HARMLESS = "/what-if"
"""Asking changes nothing, though it takes a body."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def guard(config: AdminConfig) -> Callable[[web.Request], None]:
    """Return the check that every request must pass. It raises ApiError 401 or 403."""
    known = list(_tokens(config))

    def check(request: web.Request) -> None:
        _check_host(request)
        if request.path in OPEN_PATHS or is_page(request.path):
            if request.path == _METRICS and not known:
                _refuse_browsers(request)
            return
        if not known:
            _refuse_browsers(request)
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        found: tuple[str | None, str] | None = None
        for digest, name, role in known:
            # Every comparison runs, of hashes and in constant time, so that the time taken tells nothing about any.
            if hmac.compare_digest(sha256(token).digest(), digest) and (found is None or role == "write"):
                found = (name, role)
        if found is None:
            raise ApiError(
                401, "A bearer token is required.", headers={"WWW-Authenticate": 'Bearer realm="trimtab admin"'}
            )
        name, role = found
        if name is not None:
            request[HOLDER] = name
        if role != "write" and request.method not in _SAFE and not request.path.endswith(_HARMLESS):
            raise ApiError(403, "This token may read but not change anything.")

    return check


def _tokens(config: AdminConfig) -> Iterator[tuple[bytes, str | None, str]]:
    """Yield (hash, name, role) of every token there is."""
    for secret, role in ((config.token, "write"), (config.read_token, "read")):
        if secret is not None:
            yield sha256(secret.get_secret_value().encode()).digest(), None, role
    for token in config.tokens:
        yield bytes.fromhex(token.sha256.get_secret_value()), token.name, token.role


def _check_host(request: web.Request) -> None:
    """Refuse a Host that is none, or that is not the one the target names (RFC 9112 section 3.2)."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1 or (hosts and not is_authority(hosts[0])) or (not hosts and request.version >= HttpVersion11):
        raise ApiError(400, "A request must have exactly one Host field, with a name or an address.")
    target = request.raw_path
    named = "" if target.startswith("/") else re.split("[/?]", target.partition("://")[2], maxsplit=1)[0]
    if named and hosts and named.lower() != hosts[0].lower():
        raise ApiError(400, "The Host field and the request target name different hosts.")


def _refuse_browsers(request: web.Request) -> None:
    """Without a token, keep web pages out: neither another site's requests nor a rebound name get through."""
    host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    if not is_loopback(host) and not _is_address(host):
        raise ApiError(403, f"Host {host!r} is not an address of this machine; set admin.token to use names.")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise ApiError(403, "Requests from other web sites are refused.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
