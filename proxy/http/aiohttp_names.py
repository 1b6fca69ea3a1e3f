"""What we use of aiohttp that it does not promise to keep: every such name, looked for at the start.

aiohttp is the public server. A request whose head repeats is served from the callback that read it, past aiohttp's
task, writer and stream; for that its protocol has to be told what we did, in its own words.
"""

from __future__ import annotations

import aiohttp
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from proxy.config.errors import ConfigError, Problem

__all__ = ["HANDLER", "MESSAGE", "PROTOCOL", "SERVER", "check", "missing"]

HANDLER = (
    "_buffer_paused",
    "_close",
    "_current_request",
    "_force_close",
    "_handler_waiter",
    "_keepalive",
    "_keepalive_handle",
    "_keepalive_timeout",
    "_lingering_time",
    "_manager",
    "_messages",
    "_msg_queue_resume_size",
    "_next_keepalive_close_time",
    "_parser",
    "_process_keepalive",
    "_request_factory",
    "_request_handler",
    "_request_in_progress",
    "_resume_reading_if_drained",
    "_task_handler",
    "_upgraded",
    "_waiter",
    "finish_response",
    "handle_error",
    "start",
)
"""Of the protocol of one connection."""
PROTOCOL = ("_drain_helper", "_loop", "_reading_paused")
"""Of what that is built on."""
MESSAGE = ("chunked", "headers", "upgrade")
"""Of a parsed head."""
SERVER = ("_connections", "_kwargs", "_loop", "pre_shutdown", "requests_count", "shutdown")
"""Of the server, which makes those protocols."""


def missing(server: web.Server) -> list[str]:
    """Return the names that the installed aiohttp lacks."""
    tables: tuple[tuple[object, tuple[str, ...]], ...] = (
        (RequestHandler, HANDLER),
        (BaseProtocol, PROTOCOL),
        (RawRequestMessage, MESSAGE),
        (server, SERVER),
    )
    return [
        f"{getattr(holder, '__name__', type(holder).__name__)}.{name}"
        for holder, names in tables
        for name in names
        if not hasattr(holder, name)
    ]


def check(server: web.Server) -> None:
    """Raise ConfigError where the installed aiohttp is not one that we can serve with."""
    lacking = missing(server)
    if lacking:
        text = f"version {aiohttp.__version__} lacks {', '.join(lacking)}; install one that Trimtab's own pins name"
        raise ConfigError([Problem("", "aiohttp", text)])
