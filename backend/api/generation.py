"""Running one API request's engine requests, and gathering what they produce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from backend.api.errors import ApiError, EngineFailed, InvalidRequest, Unavailable
from backend.api.metrics import RequestProbe
from backend.api.service import Service
from backend.engine.errors import EngineDied, EngineError, EngineOverloaded, RequestRefused
from backend.engine.request import Delta, FinishReason, GenerationRequest, TokenLogprob, Usage

__all__ = ["Choice", "api_error", "collect", "fan_in", "generate", "total_usage", "usage_object"]

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE: Final = 16
"""So many sources are started, and ended, between two turns of the event loop."""


@dataclass(slots=True)
class Choice:
    """One completed choice of one prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """Append a step's output."""
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
            self.text = "".join(self.texts)


def closing(iterator: AsyncIterator[T]) -> aclosing[AsyncGenerator[T, None]]:
    """Return `aclosing` for an iterator that is known to be an async generator."""
    return aclosing(cast(AsyncGenerator[T, None], iterator))


async def in_turns(items: Sequence[A]) -> AsyncIterator[A]:
    """Yield all items, and let others have their turn now and then."""
    for count, item in enumerate(items, 1):
        yield item
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)


async def fan_in(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield (source index, item) from all sources as items come.

    Closing it, or an error in one source, closes all of them. A slow consumer holds the pumps back.
    """
    if len(sources) == 1:
        async with closing(sources[0]):
            async for item in sources[0]:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=4 * len(sources))

    async def pump(index: int, source: AsyncIterator[T]) -> None:
        try:
            async with closing(source):
                async for item in source:
                    await queue.put((index, item))
        except Exception as error:
            await queue.put(error)  # raised again on the consumer's side
        else:
            await queue.put(None)

    pumps: list[asyncio.Task[None]] = []
    try:
        async for source in in_turns(sources):  # each hands its request to the engine at its first turn
            pumps.append(asyncio.create_task(pump(len(pumps), source)))
        running = len(pumps)
        while running:
            entry = await queue.get()
            if entry is None:
                running -= 1
            elif isinstance(entry, BaseException):
                raise entry
            else:
                yield entry
    finally:
        for first in range(0, len(pumps), AT_ONCE):
            some = pumps[first : first + AT_ONCE]
            for task in some:
                task.cancel()
            await asyncio.gather(*some, return_exceptions=True)
        for unused in sources[len(pumps) :]:
            await closing(unused).__aexit__(None, None, None)


def api_error(error: EngineError) -> ApiError:
    """Return what the caller is told of an engine error."""
    match error:
        case RequestRefused():
            return InvalidRequest(error.message, param=error.param, code="request_refused")
        case EngineOverloaded():
            return Unavailable(f"{error}.", code="queue_full")
        case EngineDied():
            return Unavailable(f"{error}.", code="engine_unavailable")
        case _:
            return EngineFailed(f"{error}.")


def _failure(delta: Delta) -> ApiError:
    if delta.error is not None and delta.error_param is not None:
        return InvalidRequest(
            f"'{delta.error_param}' cannot be enforced: {delta.error}.",
            param=delta.error_param,
            code="invalid_grammar",
        )
    if delta.finish_reason is FinishReason.ABORT:
        return Unavailable(delta.error or "The request was aborted: the server is stopping.", code="aborted")
    return EngineFailed(delta.error or "The engine failed while working on this request.")


async def generate(
    service: Service, requests: Sequence[GenerationRequest], arrival: float
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Run `requests` and yield (request index, delta) until every choice of every request has ended.

    Closing it aborts what is still running.

    Raises:
        Unavailable: full, without an engine, or stopping.
        InvalidRequest: one of them demands what cannot be done; the others are aborted.
        EngineFailed: the engine gave up on one of them; the others are aborted.
    """
    open_choices = sum(request.n for request in requests)
    with service.admit(open_choices):
        probes: list[RequestProbe] = []
        unfinished = FinishReason.ABORT
        try:
            async for request in in_turns(requests):
                probes.append(service.metrics.probe(request, arrival))
            async with aclosing(fan_in([service.engine.generate(request) for request in requests])) as events:
                async for position, delta in events:
                    probes[position].delta(delta, service.clock())
                    if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                        raise _failure(delta)
                    open_choices -= delta.finish_reason is not None
                    yield position, delta
            if open_choices:
                raise EngineFailed("The engine ended the request before its choices were complete.")
        except EngineError as error:
            unfinished = FinishReason.ERROR
            raise api_error(error) from error
        finally:
            now = service.clock()
            try:
                async for probe in in_turns(probes):
                    probe.close(now, unfinished)
            except asyncio.CancelledError:
                for probe in probes:  # closing twice does no harm
                    probe.close(now, unfinished)
                raise


async def collect(
    service: Service, requests: Sequence[GenerationRequest], arrival: float
) -> tuple[list[list[Choice]], list[Usage]]:
    """Run `requests` to the end and return their choices ([request][index]) and usages."""
    choices = [[Choice() for _ in range(request.n)] for request in requests]
    usages: list[Usage] = []
    async with aclosing(generate(service, requests, arrival)) as events:
        async for position, delta in events:
            choices[position][delta.index].add(delta)
            if delta.usage is not None:
                usages.append(delta.usage)
    return choices, usages


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Sum usages over the prompts of one API request. Each counts its prompt once, however many choices it has."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
