"""The worker's HTTP application: routes, errors, health, and the account of requests in progress."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from aiohttp import web

from backend.api.chat import chat
from backend.api.completions import completions
from backend.api.embeddings import embeddings
from backend.api.errors import (
    ApiError,
    EngineFailed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    Unavailable,
    error_response,
    json_response,
)
from backend.api.metrics import CONTENT_TYPE
from backend.api.models import list_models, show_model
from backend.api.service import Service
from backend.api.tokenize import detokenize, tokenize
from backend.browsers import Browsers
from policies import __version__

__all__ = ["Phase", "WorkerState", "build_app"]

logger = logging.getLogger("trimtab.worker")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ServiceHandler = Callable[[web.Request, Service], Awaitable[web.StreamResponse]]

REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
OPEN_PATHS: Final = frozenset({"/health", "/version", "/metrics"})
"""Paths that probes and scrapers read without the API key."""


class Phase(StrEnum):
    """Where the process is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class WorkerState:
    """The phase, the service once it is loaded, and how many requests are being answered."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.service: Service | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request in."""
        self._active += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._active -= 1
        if not self._active:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no request is being answered."""
        await self._idle.wait()

    def require(self) -> Service:
        """Return the service.

        Raises:
            Unavailable: still loading, or draining.
        """
        if self.phase is Phase.DRAINING:
            raise Unavailable("The worker is shutting down.", code="draining")
        if self.service is None:
            raise Unavailable("The model is still loading.", code="loading", retry_after_s=5)
        return self.service


def _bind(state: WorkerState, handler: ServiceHandler) -> Handler:
    """Give a handler its service, and count what it does as work that a shutdown waits for."""

    async def bound(request: web.Request) -> web.StreamResponse:
        service = state.require()
        state.enter()
        try:
            return await handler(request, service)
        except (asyncio.CancelledError, ConnectionError):
            if request.transport is None or request.transport.is_closing():
                service.metrics.disconnects.inc()
            raise
        finally:
            state.leave()

    return bound


def _health(state: WorkerState) -> Handler:
    async def health(request: web.Request) -> web.StreamResponse:
        service = state.require()
        if not service.engine.healthy:
            raise Unavailable("The engine is gone or makes no progress.", code="engine_unhealthy")
        return json_response({"status": "ok"})

    return health


def _metrics(state: WorkerState) -> Handler:
    async def metrics(request: web.Request) -> web.StreamResponse:
        """Scrapes go on while draining: the last numbers matter too."""
        if state.service is None:
            raise Unavailable("The model is still loading.", code="loading", retry_after_s=5)
        text = state.service.metrics.render(await state.service.engine.stats())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    return metrics


async def _version(request: web.Request) -> web.StreamResponse:
    return json_response({"version": __version__})


def _request_id(request: web.Request) -> str:
    """Return the caller's `x-request-id` where it is sane (no way to forge log lines), or a fresh one."""
    given = request.headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _check_key(request: web.Request, api_key: str | None) -> None:
    if api_key is None or request.path in OPEN_PATHS:
        return
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    matches = hmac.compare_digest(token.strip().encode(errors="surrogateescape"), api_key.encode())
    if scheme.lower() != "bearer" or not matches:
        raise Unauthorized("The API key is missing or wrong: send 'Authorization: Bearer <key>'.")


async def _answer(
    request: web.Request, handler: Handler, api_key: str | None, browsers: Browsers
) -> web.StreamResponse:
    """Run the handler, and turn whatever it raises into an OpenAI error object."""
    try:
        browsers.check_host(request)
        if browsers.is_preflight(request):
            return browsers.preflight(request)
        _check_key(request, api_key)
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return error_response(MethodNotAllowed(f"{request.path} answers {allowed} only.", allowed=allowed))
    except web.HTTPNotFound:
        return error_response(NotFound(f"There is no {request.method} {request.path} here."))
    except web.HTTPException as error:
        return error_response(InvalidRequest(f"{error.reason}."))
    except (ConnectionError, web.RequestPayloadError):
        raise  # the client is gone, or sent a body that is no HTTP: nobody to answer
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return error_response(EngineFailed("The server failed on this request; its log says why.", code="internal"))


def build_app(
    state: WorkerState, *, max_body_bytes: int, api_key: str | None = None, browsers: Browsers | None = None
) -> web.Application:
    """Return the application over `state`. It answers 503 until `state.service` is set."""

    pages = browsers or Browsers()

    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _answer(request, handler, api_key, pages)

    async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-request-id"] = _request_id(request)
        response.headers["Server"] = f"trimtab-worker/{__version__}"
        pages.show(request, response)

    app = web.Application(middlewares=[front], client_max_size=max_body_bytes)
    app.on_response_prepare.append(on_prepare)
    for path, handler in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", completions),
        ("/v1/embeddings", embeddings),
        ("/tokenize", tokenize),
        ("/detokenize", detokenize),
    ):
        app.router.add_post(path, _bind(state, handler))
    app.router.add_get("/v1/models", _bind(state, list_models))
    app.router.add_get("/v1/models/{model:.+}", _bind(state, show_model))
    app.router.add_get("/health", _health(state))
    app.router.add_get("/metrics", _metrics(state))
    app.router.add_get("/version", _version)
    return app
