"""An inference server that keeps what it makes: responses, conversations, files and their like, known to it alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from aiohttp import web

__all__ = ["StatefulUpstream"]

_STATE = (
    "previous_response_id",
    "conversation",
    "input_file_id",
    "file_id",
    "thread_id",
    "assistant_id",
    "container",
)
_LISTS = ("file_ids", "vector_store_ids")


class StatefulUpstream:
    """Answers 404 to whatever names an id that it has not made. `asked` lists methods and paths as they came."""

    def __init__(self, *, pause_s: float = 0.0, compress: bool = False, late_s: float = 0.0) -> None:
        self.kept: set[str] = set()
        self.asked: list[str] = []
        self.port = 0
        self._pause_s = pause_s
        self._late_s = late_s
        self._compress = compress
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> StatefulUpstream:
        """Listen, on the port it had before if it had one."""
        server = web.Server(self._serve)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Be away; what it keeps stays."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> StatefulUpstream:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @contextlib.contextmanager
    def in_a_thread(self) -> Iterator[StatefulUpstream]:
        """Serve from a thread of its own, for tests that have no event loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield asyncio.run_coroutine_threadsafe(self.start(), loop).result(10)
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # -- answers ---------------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response(text="ok")
        self.asked.append(f"{request.method} {request.path}")
        raw = await request.content.read()
        body: dict[str, Any] = json.loads(raw) if raw and request.content_type == "application/json" else {}
        parts = request.path.split("/v1/", 1)[1].strip("/").split("/")
        if parts[:2] in (["chat", "completions"], ["messages", "batches"], ["fine_tuning", "jobs"]):
            parts[:2] = ["/".join(parts[:2])]
        missing = [id for id in _named(body) if id not in self.kept]
        if len(parts) > 1 and parts[1:] != ["runs"] and parts[1] not in self.kept:
            missing.append(parts[1])
        if missing:
            error = {"error": {"message": f"{missing[0]} is not known", "type": "invalid_request_error"}}
            return web.json_response(error, status=404)
        if request.method != "POST" or (len(parts) > 1 and parts[1] != "runs"):
            return self._follow_up(request, parts)
        return await self._make(request, parts[0], body)

    def _follow_up(self, request: web.BaseRequest, parts: list[str]) -> web.Response:
        id = parts[1] if len(parts) > 1 else ""
        if request.method == "DELETE" and len(parts) == 2:
            self.kept.discard(id)
            return web.json_response({"id": id, "deleted": True})
        if parts[-1] == "content":
            return web.json_response({"id": "resp_of-a-caller-1", "output_file_id": "file-of-a-caller-1"})
        answer: dict[str, Any] = {"id": id, "object": parts[0]}
        if parts[0] == "batches":
            answer["output_file_id"] = f"file-out-{id}"
            self.kept.add(answer["output_file_id"])
        return web.json_response(answer)

    async def _make(self, request: web.BaseRequest, collection: str, body: dict[str, Any]) -> web.StreamResponse:
        id = f"{collection.replace('/', '_')}_{uuid4().hex}"
        if body.get("store") is not False and (collection != "chat/completions" or body.get("store")):
            self.kept.add(id)
        thing = {"object": collection, "metadata": body.get("metadata") or {}, "id": id}
        if body.get("stream"):
            return await self._stream(request, thing)
        if body.get("large"):
            thing = {"id": id, "object": collection, "text": "x" * 400_000}
        answer = web.json_response(thing)
        if self._compress:
            answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async def _stream(self, request: web.BaseRequest, thing: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await asyncio.sleep(self._late_s)
        created = {"type": "response.created", "response": thing}
        done = {"type": "response.completed", "response": thing}
        delta = {"type": "response.output_text.delta", "delta": "word", "item_id": "msg_1"}
        await answer.write(_event(created))
        await asyncio.sleep(self._pause_s)
        for _ in range(3):
            await answer.write(_event(delta))
        await answer.write(_event(done))
        return answer


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def _named(value: Any) -> list[str]:
    """Return all ids that a body refers to, at whatever depth."""
    found: list[str] = []
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "metadata":
                continue
            if name in _STATE:
                found += [each["id"] if isinstance(each, dict) and "id" in each else each]
            elif name in _LISTS:
                found += each
            else:
                found += _named(each)
    elif isinstance(value, list):
        for each in value:
            found += _named(each)
    return [id for id in found if isinstance(id, str)]
