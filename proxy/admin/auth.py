"""Who may use the admin API: a bearer token, or on loopback nobody's web page."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from proxy.admin.pages import is_page
from proxy.admin.problem import ApiError
from proxy.config.model import AdminConfig, is_loopback

__all__ = ["OPEN_PATHS", "guard"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths for probes and scrapers, which carry no secrets and need no token."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def guard(config: AdminConfig) -> Callable[[web.Request], None]:
    """Return the check that every request must pass. It raises ApiError 401 or 403."""
    full = config.token.get_secret_value().encode() if config.token else None
    read = config.read_token.get_secret_value().encode() if config.read_token else None

    def check(request: web.Request) -> None:
        if request.path in OPEN_PATHS or is_page(request.path):
            return
        if full is None:
            _refuse_browsers(request)
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        # Both comparisons always run, so that the time taken tells nothing about either.
        may_write = hmac.compare_digest(token, full)
        may_read = hmac.compare_digest(token, read) if read is not None else False
        if may_write or (may_read and request.method in _SAFE):
            return
        if may_read:
            raise ApiError(403, "This token may read but not change anything.")
        raise ApiError(
            401, "A bearer token is required.", headers={"WWW-Authenticate": 'Bearer realm="trimtab admin"'}
        )

    return check


def _refuse_browsers(request: web.Request) -> None:
    """Without a token, keep web pages out: neither another site's requests nor a rebound name get through."""
    host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    if not is_loopback(host) and not _is_address(host):
        raise ApiError(403, f"Host {host!r} is not an address of this machine; set admin.token to use names.")
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
        raise ApiError(403, "Requests from other web sites are refused.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
