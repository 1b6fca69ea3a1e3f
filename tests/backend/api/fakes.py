"""A scripted engine and a byte tokenizer, so that the API is tested without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

from backend.engine.errors import EngineDied
from backend.engine.request import Delta, FinishReason, GenerationRequest, TokenLogprob, Usage
from backend.engine.stats import EngineStats

EOS = 256
VOCAB = 257


class ByteTokenizer:
    """Token ids are bytes; 256 ends the text."""

    chat_template: str | None = "{{ messages }}"
    special_ids: frozenset[int] = frozenset({EOS})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def least_tokens(self, text: str) -> int:
        return -(-len(text.encode()) // 2)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id]) if token_id < 256 else b"<eos>"

    def id_to_token(self, token_id: int) -> str | None:
        return f"<{token_id}>"

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        lines = [f"{message['role']}: {message['content']}" for message in messages]
        if tools:
            lines.insert(0, "tools: " + json.dumps([tool["function"]["name"] for tool in tools]))
        if messages[0]["content"] == "refuse me":
            raise ValueError("the first message must not ask to be refused")
        return "\n".join(lines) + ("\nassistant:" if add_generation_prompt else "")


class Counting(ByteTokenizer):
    """Says that a token has two bytes at most, and counts what it is asked to tokenise."""

    def __init__(self) -> None:
        self.texts = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.texts += 1
        return super().encode(text, add_special_tokens)


Script = Callable[[GenerationRequest, int], str]


class FakeEngine:
    """Answers each request with scripted text, one byte a delta; `hold` stops all answers after their first byte."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or (lambda request, index: "Hello, world!")
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.finished: list[str] = []
        self.healthy = True
        self.go = asyncio.Event()
        self.go.set()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.fail_at: int | None = None
        self.failure: Exception = EngineDied("the engine process ended unexpectedly (signal 9)")
        self.error_param: str | None = None
        """Set: what fails, fails with a last delta that blames this field."""
        self.refusal: Exception | None = None
        self.embed_gate = asyncio.Event()
        self.embed_gate.set()
        self.embed_started = asyncio.Event()
        self.embedded: list[list[int]] = []
        self.embed_cancelled = asyncio.Event()

    def hold(self) -> None:
        self.go.clear()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        complete = False
        try:
            async for delta in self._deltas(request):
                yield delta
            complete = True
        finally:
            (self.finished if complete else self.aborted).append(request.id)
            self.ended.set()

    async def _deltas(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        tokens = [list(self.script(request, index).encode()) for index in range(request.n)]
        cut = [row[: request.params.max_tokens] for row in tokens]
        sent, unfinished = 0, request.n
        for position in range(max(map(len, cut), default=0)):
            for index, row in enumerate(cut):
                if position >= len(row):
                    continue
                if self.fail_at is not None and sent >= self.fail_at:
                    if self.error_param is None:
                        raise self.failure
                    error = "the grammar gave up on this text"
                    yield Delta(
                        request.id,
                        index,
                        "",
                        finish_reason=FinishReason.ERROR,
                        error=error,
                        error_param=self.error_param,
                    )
                    return
                last = position == len(row) - 1
                unfinished -= last
                reason = FinishReason.LENGTH if len(row) < len(tokens[index]) else FinishReason.STOP
                yield Delta(
                    request.id,
                    index,
                    chr(row[position]),
                    (row[position],),
                    self._logprobs(request, row[position]),
                    finish_reason=reason if last else None,
                    usage=self._usage(request, cut) if not unfinished else None,
                )
                sent += 1
                self.started.set()
            await self.go.wait()

    def _logprobs(self, request: GenerationRequest, token: int) -> tuple[TokenLogprob, ...]:
        if request.params.logprobs is None:
            return ()
        top = tuple((65 + i, -1.0 - i) for i in range(request.params.logprobs))
        return (TokenLogprob(token, -0.5, top),)

    def _usage(self, request: GenerationRequest, cut: list[list[int]]) -> Usage:
        return Usage(len(request.prompt_token_ids), sum(map(len, cut)), min(4, len(request.prompt_token_ids)))

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=1,
            waiting=2,
            free_blocks=5,
            cached_blocks=3,
            owned_blocks=2,
            total_blocks=10,
            steps=4,
            running_sum=6,
        )

    async def embed(self, token_ids: list[list[int]], pooling: Literal["mean", "last"]) -> list[list[float]]:
        self.embed_started.set()
        self.embedded.append([len(ids) for ids in token_ids])
        try:
            await self.embed_gate.wait()
        except asyncio.CancelledError:
            self.embed_cancelled.set()
            raise
        if self.refusal is not None:
            raise self.refusal
        return [[float(len(ids)), 1.0 if pooling == "last" else 0.0, 0.5] for ids in token_ids]
