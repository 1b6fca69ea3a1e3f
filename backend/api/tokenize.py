"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from backend.api.chat import render_prompt
from backend.api.errors import InvalidRequest, json_response
from backend.api.fields import boolean, string, token_ids
from backend.api.logprobs import token_text
from backend.api.service import Service
from backend.api.tools import read_tools

__all__ = ["detokenize", "tokenize"]


async def tokenize(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /tokenize` for a `prompt` or for `messages`, which may both be longer than the context.

    Raises:
        ApiError: anything wrong.
    """
    return await service.intake.read(request, partial(_tokenized, service))


def _tokenized(service: Service, body: Mapping[str, Any]) -> web.Response:
    service.check_model(body)
    if body.get("messages") is not None:
        param, special = "messages", False
        text = render_prompt(service, body, read_tools(body, service.model.tool_format))
    else:
        param, special = "prompt", boolean("add_special_tokens", True).read(body)
        text = string("prompt").read(body)
        if text is None:
            raise InvalidRequest(
                "'prompt' or 'messages' is required.", param="prompt", code="missing_required_parameter"
            )
    service.check_countable(text, param)
    (ids,) = service.encode([text], add_special_tokens=special)
    texts = None
    if boolean("return_token_strs").read(body):
        texts = [token_text(service.model.tokenizer, token) for token in ids]
    return json_response(
        {"count": len(ids), "max_model_len": service.model.max_model_len, "tokens": ids, "token_strs": texts}
    )


async def detokenize(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /detokenize` for `tokens`.

    Raises:
        ApiError: anything wrong.
    """
    return await service.intake.read(request, partial(_detokenized, service))


def _detokenized(service: Service, body: Mapping[str, Any]) -> web.Response:
    service.check_model(body)
    ids = token_ids("tokens", body.get("tokens"), service.model.vocab_size)
    return json_response({"prompt": service.model.tokenizer.decode(ids, skip_special_tokens=False)})
