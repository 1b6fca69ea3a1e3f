"""HTTP servers that people put their models behind: one application under each, asked for everything it can do."""

from __future__ import annotations

from benchmarks.compat import asks
from benchmarks.compat.exchange import Ask, post
from benchmarks.compat.server import APPS, Place, Server, own

__all__ = ["STACKS"]

_NAMES = (
    "uvicorn", "uvicorn-h11", "hypercorn", "granian", "granian-wsgi", "gunicorn", "gunicorn-threads", "waitress",
    "cheroot", "werkzeug", "wsgiref", "tornado", "aiohttp", "sanic",
)  # fmt: skip
_WITHOUT_CHUNKS = frozenset({"wsgiref"})
"""Speak HTTP/1.0 and would wait for the end of a body that has no length."""
_GETS = (
    "/ready", "/empty", "/moved", "/unchanged", "/part", "/who", "/cookies", "/teapot", "/busy", "/limited", "/image",
    "/zipped", "/large", "/events", "/lines", "/pieces", "/many-fields", "/breaks", "/breaks-behind",
    "/a%2Fb%20c", "//double//", "/params;x=1?y=%20+&z=&&z", "/question?", "/caf%C3%A9",
    "/~tilde:@!$'()*,",
)  # fmt: skip
_WORK = (
    "/predict", "/invocations", "/classify", "/generate", "/embed", "/rerank", "/score", "/infer", "/run/predict",
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models/m:predict", "/v2/models/m/infer",
    "/api/chat", "/api/generate", "/v1/messages", "/v1/responses", "/tokenize", "/v1/audio/transcriptions",
    "/v1/images/generations", "/events", "/slow", "/breaks", "/breaks-behind", "/created", "/limited", "/busy",
)  # fmt: skip
_OWN = (("X-Own", "1"), ("Cookie", "a=1; b=2"), ("Accept", "text/plain, */*;q=0.1"), ("Authorization", "Bearer key"))


def _all() -> tuple[Ask, ...]:
    body = {"model": "m", "input": ["a", 2.50], "unknown": {"a": None}, "stream": False}
    octets = bytes(range(256)) * 300
    odd = (("Content-Type", "application/x-msgpack"),)
    return (
        *(Ask(f"GET {path}", "GET", path) for path in _GETS),
        *(Ask(f"HEAD {path}", "HEAD", path) for path in ("/ready", "/large", "/events", "/who", "/echo")),
        *(post(f"POST {path}", path, body) for path in _WORK),
        *(Ask(f"{method} /things/1", method, "/things/1", b'{"a": 1}', odd) for method in ("PUT", "PATCH", "DELETE")),
        Ask("OPTIONS", "OPTIONS", "/things/1", None, (("Origin", "http://a.test"),)),
        Ask("own fields", "GET", "/echo", None, _OWN),
        Ask("a range", "GET", "/echo", None, (("Range", "bytes=0-3"), ("If-None-Match", '"a"'))),
        Ask("no body at all", "POST", "/predict"),
        Ask("an empty body", "POST", "/predict", b"", (("Content-Type", "application/json"),)),
        Ask("no content type", "POST", "/predict", octets),
        Ask("msgpack", "POST", "/predict", octets, odd),
        Ask("a large body", "POST", "/predict", octets * 60, odd),
        Ask("100-continue", "POST", "/predict", octets, (*odd, ("Expect", "100-continue"))),
        Ask("chunks", "POST", "/predict", octets, odd, chunked=True),
        Ask(
            "chunks of JSON", "POST", "/generate", b'{"inputs": "a"}', (("Content-Type", "text/json"),), chunked=True
        ),
        Ask("gzipped JSON", "POST", "/predict", b"\x1f\x8b\x08", (*odd, ("Content-Encoding", "gzip"))),
        Ask("a body with GET", "GET", "/echo", b"body", odd),
        *asks.plain("/predict"),
    )


def _stack(name: str) -> Server:
    def command(place: Place) -> list[str]:
        return [str(own("stacks").bin / "python"), str(APPS / "stack_app.py"), name, str(place.port)]

    asked = tuple(ask for ask in _all() if not (ask.chunked and name in _WITHOUT_CHUNKS))
    return Server(
        name,
        name,
        command,
        "/ready",
        environment="stacks",
        asks=asked,
        company=8,
        package=name.partition("-")[0],
        env={"PYTHONPATH": str(APPS)},
    )


STACKS = tuple(_stack(name) for name in _NAMES)
