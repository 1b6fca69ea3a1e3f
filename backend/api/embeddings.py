"""`POST /v1/embeddings`: one pooled vector of the served model per input."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from aiohttp import web

from backend.api.completions import read_prompts
from backend.api.errors import json_response
from backend.api.fields import choice, read_fields, refuse_fields, string
from backend.api.generation import api_error
from backend.api.service import Pooling, Service
from backend.engine.errors import EngineError

__all__ = ["embeddings"]

PART_TOKENS: Final = 1024
REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "dimensions": ((), "the model's vectors have one length; cut them yourself if they allow it."),
    "truncate_prompt_tokens": ((), "shorten the input before sending it; '/tokenize' counts its tokens."),
}


def _encode(vector: list[float], encoding: str) -> list[float] | str:
    """Return a vector as JSON numbers, or as base64 of little-endian float32."""
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _parts(inputs: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Cut inputs into parts of about PART_TOKENS: between two of them the engine serves the generations."""
    part: list[list[int]] = []
    size = 0
    for ids in inputs:
        if part and size + len(ids) > PART_TOKENS:
            yield part
            part, size = [], 0
        part.append(ids)
        size += len(ids)
    yield part


class _Plan(NamedTuple):
    """A checked request."""

    model: str
    encoding: str
    pooling: Pooling
    inputs: list[list[int]]


def _draft(service: Service, body: Mapping[str, Any]) -> _Plan:
    model = service.check_model(body)
    refuse_fields(body, REFUSED)
    values = read_fields(
        body,
        (
            choice("encoding_format", ("float", "base64"), "float"),
            choice("pooling", ("mean", "last"), service.model.pooling),
            string("user", max_length=1024),
        ),
    )
    inputs = read_prompts(service, body.get("input"), "input", max_prompts=service.limits.max_prompts)
    return _Plan(model, values["encoding_format"], values["pooling"], inputs)


async def embeddings(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /v1/embeddings`. Vectors have length 1; `pooling` (`mean` or `last`) is an extension.

    Raises:
        ApiError: anything wrong.
    """
    plan = await service.intake.read(request, partial(_draft, service))
    vectors: list[list[float]] = []
    with service.admit(len(plan.inputs)):
        try:
            for part in _parts(plan.inputs):
                vectors += await service.engine.embed(part, plan.pooling)
        except EngineError as error:
            raise api_error(error) from error
    tokens = sum(map(len, plan.inputs))
    return json_response(
        {
            "object": "list",
            "model": plan.model,
            "data": [
                {"object": "embedding", "index": i, "embedding": _encode(vector, plan.encoding)}
                for i, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
