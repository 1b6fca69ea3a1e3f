"""The admin and metrics listener."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from proxy.admin.api import PoolsApi
from proxy.admin.auth import guard
from proxy.admin.events import EventsApi
from proxy.admin.openapi import OPERATIONS, document
from proxy.admin.operator import Operator
from proxy.admin.pages import add_console
from proxy.admin.problem import ApiError, problem_body, problem_response
from proxy.admin.requests import actor_of
from proxy.admin.system import SystemApi
from proxy.admin.trials import TrialsApi
from proxy.config.certificates import server_context
from proxy.config.model import AdminConfig
from proxy.http.doorstep import Doorstep, Patience
from proxy.http.portions import Portions, is_costly
from proxy.http.reply import head_bytes

__all__ = ["GROUPS", "AdminServer", "make_app"]

GROUPS = (PoolsApi, TrialsApi, SystemApi, EventsApi)
"""Who implements the operations."""

_MAX_LINE = 8190
"""Bytes of a line of a request's head that aiohttp reads at most."""
_HEAD_S = 10.0
"""From a connection's first byte to the end of its first head."""
_IDLE_S = 75.0
"""For so long a connection may carry nothing."""
_ANSWER_S = 30.0
"""For so long a client may take nothing of its answer."""
_MIN_RATE = 500
"""Bytes a second that it must take then."""
_FULL = problem_body(ApiError(503, "All connections of the admin API are in use."))
_REFUSAL = (
    head_bytes(
        503, None, b"Content-Type: application/problem+json\r\nRetry-After: 1\r\n", length=len(_FULL), close=True
    )
    + _FULL
)
_LOG = logging.getLogger("trimtab.admin")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(operator: Operator, config: AdminConfig) -> web.Application:
    """Return the admin API as an application: routes from the table of operations, every error a problem."""
    check = guard(config)

    @web.middleware
    async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the caller, and word every failure the same way."""
        try:
            check(request)
            if request.match_info.http_exception is None:
                actor_of(request)  # a name that cannot be written down is refused whether or not anything changes
            return await handler(request)
        except ApiError as error:
            return problem_response(error)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return problem_response(ApiError(405, f"{request.path} answers {allowed}.", headers={"Allow": allowed}))
        except web.HTTPRequestEntityTooLarge:
            return problem_response(ApiError(413, f"The body is larger than {config.max_body_bytes} bytes."))
        except web.HTTPNotFound:
            return problem_response(ApiError(404, f"There is nothing at {request.path}; see /admin/v1/openapi.json."))
        except web.HTTPException as error:
            return problem_response(ApiError(error.status, error.reason))
        except Exception:
            _LOG.exception("the admin API failed on %s %s", request.method, request.path)
            return problem_response(ApiError(500, "The admin API failed on this request; the log has the details."))

    app = web.Application(middlewares=[problems], client_max_size=config.max_body_bytes)
    groups = [group(operator) for group in GROUPS]
    text = json.dumps(document()).encode()

    async def openapi(request: web.Request) -> web.Response:
        return web.Response(body=text, content_type="application/json")

    for operation in OPERATIONS:
        owners = (getattr(group, operation.handler) for group in groups if hasattr(group, operation.handler))
        handler = openapi if operation.handler == "openapi" else next(owners)
        app.router.add_route(operation.method, operation.path, handler)
        if operation.method == "GET" and operation.content != "text/event-stream":
            app.router.add_route("HEAD", operation.path, handler)
    add_console(app)
    return app


class AdminServer:
    """Serves the admin API on a socket that was bound beforehand, so that a taken port is known at once."""

    def __init__(self, operator: Operator, config: AdminConfig) -> None:
        app = make_app(operator, config)
        self.tls = None if config.tls is None else server_context(config.tls)
        """What connections are secured with; None for plain http."""
        self._runner = _Runner(
            app, access_log=None, logger=_wire_log(), shutdown_timeout=1.0, keepalive_timeout=_IDLE_S
        )
        self._patience = Patience(
            max_connections=config.max_connections, idle_s=_IDLE_S, answer_s=_ANSWER_S, min_rate=_MIN_RATE
        )
        self._doorstep: Doorstep | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Begin to answer."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._doorstep = Doorstep(server, self._patience, _REFUSAL, "the admin listener")
        self._listening = await asyncio.get_running_loop().create_server(
            self._doorstep,
            sock=sock,
            ssl=self.tls,
            ssl_handshake_timeout=None if self.tls is None else _HEAD_S,
        )

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._listening is not None:
            self._listening.close()
        if self._doorstep is not None:
            self._doorstep.close()
        await self._runner.cleanup()


class _Protocol(RequestHandler):
    """A connection on which what cannot be read is answered with a problem document, too."""

    __slots__ = ("_portions",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._portions: Portions | None = None
        """What a read brought and is not parsed yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection that has begun to speak: its first head has its own time."""
        super().connection_made(transport)
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        self._next_keepalive_close_time = self._loop.time() + _HEAD_S
        self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)

    def data_received(self, data: bytes) -> None:
        """Have aiohttp parse what came, in portions where that may take long: the loop is the data plane's, too."""
        transport = self.transport
        if self._portions is not None and data:
            self._portions.add(data)
        elif transport is not None and is_costly(data):
            self._portions = Portions(self._loop, transport, data, parse=super().data_received, done=self._all_in)
        else:
            super().data_received(data)

    def _all_in(self) -> None:
        self._portions = None
        transport = self.transport
        if transport is not None and not self._reading_paused and not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, and with it what it began to say."""
        if self._portions is not None:
            self._portions.drop()
            self._portions = None
        super().connection_lost(exc)

    def idle_since(self) -> float | None:
        """Return when the latest request was over, or the connection taken over; None while there is a request."""
        waiter = self._waiter
        if self._current_request is not None or self._messages or waiter is None or waiter.done():
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    def step_out(self) -> bool:
        """Stay: there are few enough connections for each to keep its parser."""
        return False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that could not be parsed, and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun and cannot be taken back")
        if isinstance(exc, LineTooLong):
            detail = f"A line of the request's head is longer than {_MAX_LINE} bytes."
        else:
            first = (message or "").strip().partition("\n")[0].rstrip(":. ")
            detail = f"The request is not HTTP/1.1: {first[:200] or 'it cannot be parsed'}."
        answer = problem_response(ApiError(status, detail))
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes our protocols."""

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    """Runs an application on connections of ours."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, request_factory=made.request_factory, **made._kwargs)


def _wire_log() -> logging.Logger:
    """Return a logger that keeps still about malformed requests: anybody could fill the log with them."""
    logger = logging.getLogger("trimtab.admin.wire")
    logger.setLevel(logging.CRITICAL)
    return logger
