"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

from aiohttp import web

from backend.api.body import read_json
from backend.api.chat import render_prompt
from backend.api.errors import InvalidRequest, json_response
from backend.api.fields import boolean, string, token_ids
from backend.api.logprobs import token_text
from backend.api.service import Service
from backend.api.tools import read_tools

__all__ = ["detokenize", "tokenize"]


async def tokenize(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /tokenize` for a `prompt` or for `messages`.

    Raises:
        ApiError: anything wrong.
    """
    body = await read_json(request)
    service.check_model(body)
    if body.get("messages") is not None:
        tools = read_tools(body, service.model.tool_format)
        ids = await render_prompt(service, body, tools.declared if tools else None)
    else:
        prompt = string("prompt").read(body)
        if prompt is None:
            raise InvalidRequest(
                "'prompt' or 'messages' is required.", param="prompt", code="missing_required_parameter"
            )
        special = boolean("add_special_tokens", True).read(body)
        (ids,) = await service.encode([prompt], add_special_tokens=special)
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
    body = await read_json(request)
    service.check_model(body)
    ids = token_ids("tokens", body.get("tokens"), service.model.vocab_size)
    return json_response({"prompt": service.model.tokenizer.decode(ids, False)})
