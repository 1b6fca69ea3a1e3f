"""`POST /v1/completions`: text, token arrays, or lists of either, completed n times each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from backend.api.constraints import Constraint, check_enforceable, check_fields, read_constraint
from backend.api.envelope import Envelope, read_envelope
from backend.api.errors import InvalidRequest, json_response
from backend.api.fields import Field, boolean, integer, refuse_fields, token_ids, type_name
from backend.api.generation import Choice, collect, generate, total_usage, usage_object
from backend.api.logprobs import TextOffsets, completion_logprobs
from backend.api.sampling import MAX_BIASES, MAX_LOGPROBS, read_sampling
from backend.api.service import Service, new_id
from backend.api.sse import stream_chunks
from backend.engine.request import Delta, GenerationRequest, SamplingParams, Usage

__all__ = ["completions", "read_prompts"]

DEFAULT_MAX_TOKENS: Final = 16
MAX_COPIES: Final = 16 << 20
"""Characters of a grammar, over all prompts of a request."""
LOGPROBS: Final[Field] = integer("logprobs", 0, MAX_LOGPROBS)
ECHO: Final[Field] = boolean("echo")
REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "suffix": (("",), "the model completes text, it does not fill in the middle."),
    "best_of": ((1,), "ask for 'n' choices with 'logprobs' and choose."),
    "prompt_embeds": ((), "send text or token ids."),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked completions request."""

    id: str
    created: int
    envelope: Envelope
    echoes: list[str]
    """Per prompt, the text to repeat before its completions; empty strings without `echo`."""
    requests: list[GenerationRequest]
    constraint: Constraint | None
    """Its grammar, of which it is not known yet whether it can be enforced."""

    def index(self, position: int, choice: int) -> int:
        """Return the index, over all prompts, of a prompt's choice."""
        return position * self.envelope.n + choice

    def head(self) -> dict[str, Any]:
        """Return the keys that every object of this answer starts with."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.envelope.model,
        }


def read_prompts(service: Service, value: Any, param: str, *, max_prompts: int) -> list[list[int]]:
    """Return the token ids of each prompt in a string, a token array, or an array of either.

    Raises:
        InvalidRequest: missing, empty, mixed types, too many, too long (each named).
    """
    if value is None:
        raise InvalidRequest(f"'{param}' is required.", param=param, code="missing_required_parameter")
    if not isinstance(value, str | list):
        raise InvalidRequest(
            f"'{param}' must be a string or an array, not {type_name(value)}.", param=param, code="invalid_type"
        )
    if isinstance(value, list) and not value:
        raise InvalidRequest(f"'{param}' must not be empty.", param=param, code="invalid_value")
    prompts = [value] if isinstance(value, str) or type(value[0]) is int else value
    if len(prompts) > max_prompts:
        raise InvalidRequest(
            f"'{param}' may have at most {max_prompts} entries, but it has {len(prompts)}.",
            param=param,
            code="invalid_value",
        )
    ids = [
        [] if isinstance(prompt, str) else token_ids(param, prompt, service.model.vocab_size) for prompt in prompts
    ]
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    for text in texts:
        service.check_text(text, param)
    encoded = iter(service.encode(texts, add_special_tokens=True))
    ids = [next(encoded) if isinstance(prompt, str) else tokens for prompt, tokens in zip(prompts, ids, strict=True)]
    for tokens in ids:
        service.check_prompt(tokens, param)
    return ids


def _draft(service: Service, headers: Mapping[str, str], body: Mapping[str, Any]) -> Plan:
    envelope = read_envelope(service, body, headers)
    refuse_fields(body, REFUSED)
    logprobs: int | None = LOGPROBS.read(body)
    echo: bool = ECHO.read(body)
    if echo and logprobs is not None:
        raise InvalidRequest(
            "'echo' cannot be combined with 'logprobs': log-probabilities are computed for output tokens only.",
            param="echo",
            code="unsupported_parameter",
        )
    constraint = read_constraint(body)
    if constraint is not None:
        check_fields(body, constraint)
    raw = body.get("prompt")
    prompts = read_prompts(service, raw, "prompt", max_prompts=service.limits.max_prompts)
    _check_copies(body, constraint, len(prompts))
    plan_id = new_id("cmpl")
    sampling: dict[int, SamplingParams] = {}
    requests = []
    for position, ids in enumerate(prompts):
        room = service.model.max_model_len - len(ids)
        if room not in sampling:
            sampling[room] = read_sampling(
                body,
                vocab_size=service.model.vocab_size,
                defaults=service.model.sampling_defaults,
                logprobs=logprobs,
                default_max_tokens=DEFAULT_MAX_TOKENS,
                room=room,
                max_model_len=service.model.max_model_len,
            )
        requests.append(envelope.request(f"{plan_id}-{position}", ids, sampling[room], constraint))
    return Plan(
        id=plan_id,
        created=int(service.wall()),
        envelope=envelope,
        echoes=_echo_texts(service, raw, prompts) if echo else [""] * len(prompts),
        requests=requests,
        constraint=constraint,
    )


def _check_copies(body: Mapping[str, Any], constraint: Constraint | None, prompts: int) -> None:
    """Refuse what the engine would be told too often: each prompt takes all that goes with it along.

    Raises:
        InvalidRequest: naming what is too large for so many prompts.
    """
    bias = body.get("logit_bias")
    for param, size, most in (
        ("logit_bias", len(bias) if isinstance(bias, dict) else 0, MAX_BIASES),
        (
            "prompt" if constraint is None else constraint.param,
            len(constraint.grammar) if constraint else 0,
            MAX_COPIES,
        ),
    ):
        if prompts > 1 and size * prompts > most:
            raise InvalidRequest(
                f"'{param}' is too large for {prompts} prompts: send fewer at once.",
                param=param,
                code="invalid_value",
            )


def _echo_texts(service: Service, raw: Any, prompts: Sequence[list[int]]) -> list[str]:
    given = raw if isinstance(raw, list) and type(raw[0]) is not int else [raw]
    return [
        prompt if isinstance(prompt, str) else service.model.tokenizer.decode(ids, False)
        for prompt, ids in zip(given, prompts, strict=True)
    ]


def _offsets(service: Service, plan: Plan, position: int) -> TextOffsets:
    skip = plan.requests[position].params.skip_special_tokens
    return TextOffsets(service.model.tokenizer, skip_special_tokens=skip)


class Chunks:
    """Completions chunks; keeps where the text of each choice is, for `text_offset`."""

    def __init__(self, service: Service, plan: Plan) -> None:
        self._service = service
        self._plan = plan
        self._offsets: dict[int, TextOffsets] = {}
        self._usages: list[Usage] = []

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        chunk = {**self._plan.head(), "choices": choices}
        if self._plan.envelope.include_usage:
            chunk["usage"] = usage
        return chunk

    def start(self) -> Iterator[dict[str, Any]]:
        """Yield the echoed prompts."""
        for position, echo in enumerate(self._plan.echoes):
            if echo:
                for choice in range(self._plan.envelope.n):
                    yield self._chunk([_choice(self._plan.index(position, choice), echo, None, None, None)])

    def delta(self, position: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield a chunk where there is something to say."""
        if delta.usage is not None:
            self._usages.append(delta.usage)
        if not delta.text and not delta.logprobs and delta.finish_reason is None:
            return
        index = self._plan.index(position, delta.index)
        logprobs = None
        if self._plan.requests[position].params.logprobs is not None:
            if index not in self._offsets:
                self._offsets[index] = _offsets(self._service, self._plan, position)
            logprobs = completion_logprobs(self._service.model.tokenizer, delta.logprobs, self._offsets[index])
        yield self._chunk([_choice(index, delta.text, logprobs, delta.finish_reason, delta.stop_reason)])

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the usage chunk, where asked for."""
        if self._plan.envelope.include_usage:
            yield self._chunk([], usage_object(total_usage(self._usages)))


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None, stop_reason: str | int | None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


def _full_choice(service: Service, plan: Plan, position: int, index: int, choice: Choice) -> dict[str, Any]:
    logprobs = None
    if plan.requests[position].params.logprobs is not None:
        logprobs = completion_logprobs(service.model.tokenizer, choice.logprobs, _offsets(service, plan, position))
    text = plan.echoes[position] + choice.text
    return _choice(plan.index(position, index), text, logprobs, choice.finish_reason, choice.stop_reason)


async def completions(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /v1/completions`.

    Raises:
        ApiError: anything wrong before the first byte.
    """
    arrival = service.clock()
    plan = await service.intake.read(request, partial(_draft, service, request.headers))
    if plan.constraint is not None:
        await check_enforceable(service, plan.constraint)
    if plan.envelope.stream:
        events = generate(service, plan.requests, arrival)
        return await stream_chunks(request, events, Chunks(service, plan), write_stall_s=service.limits.write_stall_s)
    choices, usages = await collect(service, plan.requests, arrival)
    return json_response(
        {
            **plan.head(),
            "choices": [
                _full_choice(service, plan, position, index, choice)
                for position, row in enumerate(choices)
                for index, choice in enumerate(row)
            ],
            "usage": usage_object(total_usage(usages)),
        }
    )
