"""Every way in which a server fails fast, in every wire format: what it is asked, and what it writes, byte for byte.

Used by the tests of what a failure is, and by the benchmark of a sick upstream beside a good one.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FORMATS", "STATUSES", "Ask", "Script", "ScriptedServer", "answer", "chunked", "failures"]

STATUSES = (401, 403, 404, 405, 429, 500, 502, 503)
JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Ask:
    """One request in one wire format, and how a well server answers it."""

    name: str
    path: str
    body: dict[str, Any]
    good: Any
    """A JSON document, or the pieces of a stream, its end mark last."""
    kind: str = JSON
    error: bytes = b'{"error":"sick"}'
    """The protocol's own error, as a document."""
    event: bytes = b""
    """The same inside a stream."""
    marked: bool = True
    """Whether the last piece of the stream is an end mark."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream."""
        return self.kind != JSON

    @property
    def pieces(self) -> list[bytes]:
        """The pieces of the healthy answer."""
        return list(self.good) if self.streamed else [json.dumps(self.good).encode()]


OPENAI_ERROR = b'{"error":{"message":"sick","type":"server_error","param":null,"code":null}}'
ANTHROPIC_ERROR = b'{"type":"error","error":{"type":"api_error","message":"sick"}}'
TYPED_ERROR = b'{"error":"sick","error_type":"generation"}'
_TALK = [{"role": "user", "content": "hi"}]
_SAID = "no error here, only the word"


def _chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def _event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


FORMATS: dict[str, Ask] = {
    ask.name: ask
    for ask in (
        Ask(
            "openai chat", "/v1/chat/completions", {"model": "m", "messages": _TALK},
            {"object": "chat.completion", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": _SAID}, "finish_reason": "stop"}]},
            error=OPENAI_ERROR,
        ),
        Ask(
            "openai chat stream", "/v1/chat/completions", {"model": "m", "messages": _TALK, "stream": True},
            [_chunk("no"), _chunk(' "error"'), _chunk(" here"), _chunk("", "stop"), b"data: [DONE]\n\n"],
            SSE, OPENAI_ERROR, b"data: " + OPENAI_ERROR + b"\n\n",
        ),
        Ask(
            "openai embeddings", "/v1/embeddings", {"model": "m", "input": "hi"},
            {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}],
             "usage": {"prompt_tokens": 1, "total_tokens": 1}},
            error=OPENAI_ERROR,
        ),
        Ask(
            "openai responses stream", "/v1/responses", {"model": "m", "input": "hi", "store": False, "stream": True},
            [_event("response.created", response={"id": "r"}), _event("response.output_text.delta", delta="no"),
             _event("response.completed", response={"id": "r", "object": "response", "status": "completed"})],
            SSE, OPENAI_ERROR, b'event: error\ndata: {"type":"error","code":"server_error","message":"sick"}\n\n',
        ),
        Ask(
            "anthropic", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": _TALK},
            {"type": "message", "content": [{"type": "text", "text": _SAID}], "stop_reason": "end_turn"},
            error=ANTHROPIC_ERROR,
        ),
        Ask(
            "anthropic stream", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": _TALK, "stream": True},
            [_event("message_start", message={"usage": {"input_tokens": 1}}),
             _event("content_block_delta", delta={"type": "text_delta", "text": "no"}),
             _event("message_delta", delta={"stop_reason": "end_turn"}), _event("message_stop")],
            SSE, ANTHROPIC_ERROR, b"event: error\ndata: " + ANTHROPIC_ERROR + b"\n\n",
        ),
        Ask("ollama", "/api/chat", {"model": "m", "messages": _TALK, "stream": False},
            {"model": "m", "message": {"role": "assistant", "content": _SAID}, "done": True}),
        Ask(
            "ollama stream", "/api/chat", {"model": "m", "messages": _TALK},
            [b'{"message":{"content":"no"},"done":false}\n', b'{"message":{"content":"!"},"done":false}\n',
             b'{"done":true,"eval_count":2}\n'],
            LINES, b'{"error":"sick"}', b'{"error":"sick"}\n',
        ),
        Ask("kserve", "/v2/models/m/infer",
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]},
            {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2]}]}),
        Ask(
            "kserve stream", "/v2/models/m/generate_stream", {"text_input": "hi"},
            [b'data: {"text_output":"no"}\n\n', b'data: {"text_output":"more"}\n\n'],
            SSE, event=b'data: {"error":"sick"}\n\n', marked=False,
        ),
        Ask("tfserving", "/v1/models/m:predict", {"instances": [[1.0]]}, {"predictions": [[2.0]]}),
        Ask("tgi", "/generate", {"inputs": "hi"}, {"generated_text": _SAID}, error=TYPED_ERROR),
        Ask(
            "tgi stream", "/generate_stream", {"inputs": "hi"},
            [b'data:{"token":{"text":"no"},"generated_text":null}\n\n',
             b'data:{"token":{"text":"!"},"generated_text":"no!"}\n\n'],
            SSE, TYPED_ERROR, b"data:" + TYPED_ERROR + b"\n\n",
        ),
        Ask("tei", "/embed", {"inputs": "hi"}, [[0.5, 1.0]], error=TYPED_ERROR),
        Ask("rerank", "/v1/rerank", {"model": "m", "query": "q", "documents": ["a"]},
            {"results": [{"index": 0, "relevance_score": 0.5}]}, error=OPENAI_ERROR),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Script:
    """What a server writes, and whether it closes the connection then."""

    pieces: list[bytes] = field(default_factory=list)
    closes: bool = False


def answer(body: bytes, *, status: int = 200, kind: str = JSON, length: int | None = None) -> Script:
    """Return a whole answer; with a `length` beyond its body it is truncated."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    return Script([head.encode() + body], closes=size != len(body))


def chunked(pieces: list[bytes], *, kind: str = SSE, ends: bool = True, at_once: bool = False) -> Script:
    """Return a stream, each piece written by itself unless `at_once`."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    if ends:
        framed.append(b"0\r\n\r\n")
    return Script([head + b"".join(framed)] if at_once else [head, *framed], closes=not ends)


def well(ask: Ask) -> Script:
    """Return the healthy answer."""
    return chunked(ask.pieces, kind=ask.kind) if ask.streamed else answer(ask.pieces[0])


def failures(ask: Ask) -> dict[str, Script]:
    """Return every way to fail that there is in a format, by name."""
    found = {f"status {status}": answer(ask.error, status=status) for status in STATUSES}
    found["garbage"] = Script([b"\x00\x01 this is no HTTP\r\n\r\n"], closes=True)
    found["closes unheard"] = Script([], closes=True)
    if not ask.streamed:
        whole = ask.pieces[0]
        found["error in 200"] = answer(ask.error)
        found["error in 200, chunked"] = chunked([ask.error], kind=JSON)
        found["truncated"] = answer(whole[:-5], length=len(whole))
        found["half a document"] = answer(whole[:-5])
        found["nothing in 200"] = answer(b"")
        return found
    found["error in 200 instead of a stream"] = answer(ask.error)
    found["error first"] = chunked([ask.event], kind=ask.kind)
    found["error first, at once"] = chunked([ask.event], kind=ask.kind, at_once=True)
    found["error later"] = chunked([*ask.pieces[:2], ask.event], kind=ask.kind)
    found["no byte"] = chunked([], kind=ask.kind)
    found["cut off"] = chunked(ask.pieces[:2], kind=ask.kind, ends=False)
    if ask.marked:
        found["no end mark"] = chunked(ask.pieces[:2] if len(ask.pieces) > 2 else ask.pieces[:1], kind=ask.kind)
    return found


class ScriptedServer:
    """Answers each request by a script, whatever it is; `async with ScriptedServer(script) as server:`."""

    def __init__(self, script: Script, *, delay_s: float = 0.0, gap_s: float = 0.0) -> None:
        self.script = script
        self.delay_s = delay_s
        self.gap_s = gap_s
        self.asked = 0
        self.written = 0
        """Pieces of the latest answer."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if length:
            await reader.readexactly(int(length[0].partition(b":")[2]))
        self.asked += 1
        script = self.script
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.written = 0
        for position, piece in enumerate(script.pieces):
            if position and self.gap_s:
                await asyncio.sleep(self.gap_s)
            writer.write(piece)
            self.written += 1
            await writer.drain()
        return not script.closes
