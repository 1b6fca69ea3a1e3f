"""`GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from backend.api.errors import json_response
from backend.api.service import Service

__all__ = ["list_models", "show_model"]


def _card(service: Service, name: str) -> dict[str, Any]:
    model = service.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "trimtab",
        "root": model.names[0],
        "parent": None,
        "max_model_len": model.max_model_len,
    }


async def list_models(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `GET /v1/models`: every name the model answers to."""
    return json_response({"object": "list", "data": [_card(service, name) for name in service.model.names]})


async def show_model(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `GET /v1/models/{model}`.

    Raises:
        ModelNotFound: it is another model.
    """
    return json_response(_card(service, service.check_model({"model": request.match_info["model"]})))
