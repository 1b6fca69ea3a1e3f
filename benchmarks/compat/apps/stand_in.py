"""A stand-in for servers that cannot run here: it speaks Ollama's, TGI's and TEI's protocol and computes nothing.

    python stand_in.py PORT

Ollama and the two of Hugging Face are not in any package registry. What their clients send and expect is public,
and that is what this answers with, in their framing: JSON lines, server-sent events, bare arrays.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from aiohttp import web

WORDS = ["Paris", " is", " the", " capital", " of", " France", "."]
MODEL = "demo"
_WHEN = "2026-01-01T00:00:00.000000Z"


def vector(text: str) -> list[float]:
    """A vector that depends on nothing but the text."""
    return [len(text) / 64, sum(text.encode()) % 97 / 97, text.count(" ") / 16, 0.25]


async def body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object that was sent."""
    try:
        document = json.loads(await request.read())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise web.HTTPUnprocessableEntity(
            text='{"error":"Failed to parse the request body","error_type":"validation"}'
        )
    return document


def limit(document: dict[str, Any], section: str, name: str) -> int:
    """How many words are wanted."""
    return min(len(WORDS), int(document.get(section, {}).get(name) or len(WORDS)))


async def lines(request: web.Request, kind: str, pieces: list[str]) -> web.StreamResponse:
    """A stream, one write a piece."""
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece.encode())
    return response


async def ollama_text(request: web.Request) -> web.StreamResponse:
    """`/api/chat` and `/api/generate`: JSON lines unless `stream` is false."""
    document = await body_of(request)
    if document.get("model") != MODEL:
        text = json.dumps({"error": f"model '{document.get('model')}' not found"})
        return web.Response(status=404, text=text, content_type="application/json")
    words = WORDS[: limit(document, "options", "num_predict")]
    chat = request.path.endswith("chat")

    def line(text: str, **more: Any) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
        return {"model": MODEL, "created_at": _WHEN, **said, "done": bool(more), **more}

    counts = {"total_duration": 5_000_000, "load_duration": 1_000_000, "prompt_eval_count": 9}
    last = {"done_reason": "stop", **counts, "eval_count": len(words), "eval_duration": 3_000_000}
    if document.get("stream") is False:
        return web.json_response(line("".join(words), **last))
    events = [line(word) for word in words] + [line("", **last)]
    return await lines(request, "application/x-ndjson", [f"{json.dumps(event)}\n" for event in events])


async def ollama_embed(request: web.Request) -> web.Response:
    """`/api/embed`: a text or a list of them."""
    document = await body_of(request)
    texts = document["input"] if isinstance(document["input"], list) else [document["input"]]
    counts = {"total_duration": 1_000_000, "load_duration": 1_000, "prompt_eval_count": 3 * len(texts)}
    return web.json_response({"model": MODEL, "embeddings": [vector(text) for text in texts], **counts})


async def ollama_tags(request: web.Request) -> web.Response:
    """`/api/tags` and `/api/ps`."""
    details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]}
    one = {"name": MODEL, "model": MODEL, "modified_at": _WHEN, "size": 1, "digest": "0" * 64, "details": details}
    return web.json_response({"models": [one]})


async def ollama_show(request: web.Request) -> web.Response:
    """`/api/show`."""
    return web.json_response({"modelfile": "", "template": "{{ .Prompt }}", "model_info": {}, "capabilities": []})


async def ollama_version(request: web.Request) -> web.Response:
    """`/api/version`."""
    return web.json_response({"version": "0.12.0"})


async def tgi_generate(request: web.Request) -> web.StreamResponse:
    """`/generate`, `/generate_stream`, and `/`, which does either."""
    document = await body_of(request)
    parameters = document.get("parameters") or {}
    if (parameters.get("max_new_tokens") or 1) < 1:
        wrong = {"error": "Input validation error: `max_new_tokens` must be strictly positive"}
        return web.json_response({**wrong, "error_type": "validation"}, status=422)
    words = WORDS[: limit(document, "parameters", "max_new_tokens")]
    tokens = [{"id": n, "text": word, "logprob": -0.5, "special": False} for n, word in enumerate(words)]
    counts = {"finish_reason": "length", "generated_tokens": len(words), "seed": None}
    if request.path.endswith("stream") or document.get("stream"):
        events: list[dict[str, Any]] = [
            {"index": n, "token": t, "generated_text": None} for n, t in enumerate(tokens)
        ]
        events[-1] |= {"generated_text": "".join(words), "details": counts}
        return await lines(request, "text/event-stream", [f"data:{json.dumps(event)}\n\n" for event in events])
    whole: dict[str, Any] = {"generated_text": "".join(words)}
    if parameters.get("details"):
        whole["details"] = {**counts, "prefill": [], "tokens": tokens}
    return web.json_response(whole if request.path == "/generate" else [whole])


async def tei_embed(request: web.Request) -> web.Response:
    """`/embed`: a bare array of vectors."""
    document = await body_of(request)
    texts = document["inputs"] if isinstance(document["inputs"], list) else [document["inputs"]]
    return web.json_response([vector(text) for text in texts], headers={"x-compute-type": "cpu"})


async def tei_rerank(request: web.Request) -> web.Response:
    """`/rerank`: a bare array of indexes and scores, best first."""
    document = await body_of(request)
    scores = [{"index": n, "score": vector(text)[1]} for n, text in enumerate(document["texts"])]
    return web.json_response(sorted(scores, key=lambda each: -each["score"]))


async def healthy(request: web.Request) -> web.Response:
    """`/health` of both: an empty 200."""
    return web.Response()


def application() -> web.Application:
    """Every route."""
    app = web.Application()
    app.add_routes(
        [
            web.post("/api/chat", ollama_text),
            web.post("/api/generate", ollama_text),
            web.post("/api/embed", ollama_embed),
            web.get("/api/tags", ollama_tags),
            web.get("/api/ps", ollama_tags),
            web.post("/api/show", ollama_show),
            web.get("/api/version", ollama_version),
            web.post("/", tgi_generate),
            web.post("/generate", tgi_generate),
            web.post("/generate_stream", tgi_generate),
            web.post("/embed", tei_embed),
            web.post("/rerank", tei_rerank),
            web.get("/health", healthy),
        ]
    )
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
