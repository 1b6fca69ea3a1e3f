"""`POST /v1/chat/completions`: messages through the model's chat template, answered n times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from backend.api.constraints import Constraint, check_enforceable, check_fields, read_constraint
from backend.api.envelope import Envelope, read_envelope
from backend.api.errors import InvalidRequest, json_response
from backend.api.fields import Field, boolean, integer, mapping, refuse_fields
from backend.api.generation import Choice, collect, generate, total_usage, usage_object
from backend.api.logprobs import chat_logprobs
from backend.api.messages import read_messages
from backend.api.sampling import MAX_LOGPROBS, read_sampling
from backend.api.service import Service, new_id
from backend.api.sse import stream_chunks
from backend.api.tools import ToolCall, ToolParser, Tools, call_grammar, parameter_grammars, read_tools
from backend.engine.request import Delta, FinishReason, GenerationRequest, Usage

__all__ = ["chat", "render_prompt"]

LOGPROBS: Final[Field] = boolean("logprobs")
TOP_LOGPROBS: Final[Field] = integer("top_logprobs", 0, MAX_LOGPROBS)
GENERATION_PROMPT: Final[Field] = boolean("add_generation_prompt", True)
TEMPLATE_KWARGS: Final[Field] = mapping("chat_template_kwargs")
MAX_VARIABLES: Final = 1024
TEMPLATE_OWN: Final = frozenset({"messages", "tools", "add_generation_prompt", "tokenize", "chat_template"})
REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "functions": (([],), "use 'tools'."),
    "function_call": (("none",), "use 'tools' and 'tool_choice'."),
    "audio": ((), "this model writes text only."),
    "modalities": ((["text"],), "this model writes text only."),
    "web_search_options": ((), "the worker reaches no network."),
    "chat_template": ((), "templates are not taken from requests."),
    "continue_final_message": ((False,), "send the rendered prompt to /v1/completions."),
    "documents": (([],), "put them into the messages."),
    "echo": ((False,), "use /v1/completions."),
    "best_of": ((1,), "ask for 'n' choices with 'logprobs' and choose."),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked chat request."""

    id: str
    created: int
    envelope: Envelope
    request: GenerationRequest
    tools: Tools | None
    """Set when tool calls are to be looked for in the output."""
    unchecked: tuple[Constraint, ...]
    """Grammars of which it is not known yet whether they can be enforced."""

    def head(self, kind: str) -> dict[str, Any]:
        """Return the keys that every object of this answer starts with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.envelope.model}


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    top: int | None = TOP_LOGPROBS.read(body)
    if LOGPROBS.read(body):
        return top or 0
    if top:
        raise InvalidRequest(
            "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs", code="invalid_value"
        )
    return None


def render_prompt(service: Service, body: Mapping[str, Any], tools: Tools | None) -> str:
    """Render `messages` through the chat template. The text has its special tokens: none are to be added to it.

    Raises:
        InvalidRequest: a message is wrong, the model has no template, or the template refuses the messages.
    """
    messages = read_messages(body.get("messages"))
    tokenizer = service.model.tokenizer
    if tokenizer.chat_template is None:
        raise InvalidRequest(
            "This model has no chat template: use /v1/completions.",
            param="messages",
            code="no_chat_template",
        )
    if "developer" not in tokenizer.chat_template:
        messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    extra = TEMPLATE_KWARGS.read(body) or {}
    if clash := sorted(TEMPLATE_OWN & extra.keys()):
        raise InvalidRequest(
            f"'chat_template_kwargs' may not set {clash[0]!r}.", param="chat_template_kwargs", code="invalid_value"
        )

    if len(extra) > MAX_VARIABLES:
        raise InvalidRequest(
            f"'chat_template_kwargs' may have at most {MAX_VARIABLES} entries, but it has {len(extra)}.",
            param="chat_template_kwargs",
            code="invalid_value",
        )

    declared = tools.declared if tools else None
    opened = GENERATION_PROMPT.read(body)
    try:
        return tokenizer.apply_chat_template(messages, declared, add_generation_prompt=opened, **extra)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"The model's chat template refuses these messages: {error}", param="messages", code="template_error"
        ) from error


def _read_constraints(body: Mapping[str, Any], tools: Tools | None) -> tuple[Constraint, ...]:
    """Return, last, what the answer must follow: the caller's grammar, or that of a call; before it its parts."""
    constraint = read_constraint(body)
    if tools is not None and constraint is not None:
        raise InvalidRequest(
            f"'{constraint.param}' cannot be combined with 'tools': set 'tool_choice' to 'none'.",
            param=constraint.param,
            code="invalid_value",
        )
    parts: list[Constraint] = []
    if tools is not None and tools.forced:
        parts = [Constraint(grammar, param) for grammar, param in parameter_grammars(tools)]
        constraint = Constraint(call_grammar(tools), "tool_choice")
    if constraint is None:
        return ()
    check_fields(body, constraint)
    return (*parts, constraint)


def _draft(service: Service, headers: Mapping[str, str], body: Mapping[str, Any]) -> Plan:
    envelope = read_envelope(service, body, headers)
    refuse_fields(body, REFUSED)
    logprobs = _read_logprobs(body)
    tools = read_tools(body, service.model.tool_format)
    constraints = _read_constraints(body, tools)
    prompt = render_prompt(service, body, tools)
    service.check_text(prompt, "messages")
    (ids,) = service.encode([prompt], add_special_tokens=False)
    service.check_prompt(ids, "messages")
    room = service.model.max_model_len - len(ids)
    params = read_sampling(
        body,
        vocab_size=service.model.vocab_size,
        defaults=service.model.sampling_defaults,
        logprobs=logprobs,
        default_max_tokens=room,
        room=room,
        max_model_len=service.model.max_model_len,
    )
    plan_id = new_id("chatcmpl")
    return Plan(
        id=plan_id,
        created=int(service.wall()),
        envelope=envelope,
        request=envelope.request(plan_id, ids, params, constraints[-1] if constraints else None),
        tools=tools,
        unchecked=constraints,
    )


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(reason: FinishReason | None, called: bool) -> str | None:
    return "tool_calls" if called and reason is FinishReason.STOP else reason


class Chunks:
    """Chat chunks: the role first, then content, tool calls once they are complete, the finish, and the usage."""

    def __init__(self, service: Service, plan: Plan) -> None:
        self._service = service
        self._plan = plan
        self._usage: Usage | None = None
        self._parsers = [ToolParser(plan.tools) for _ in range(plan.envelope.n)] if plan.tools else None

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        return self._wrap([choice])

    def _wrap(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        chunk = {**self._plan.head("chat.completion.chunk"), "choices": choices}
        if self._plan.envelope.include_usage:
            chunk["usage"] = usage
        return chunk

    def start(self) -> Iterator[dict[str, Any]]:
        """Yield each choice's role."""
        for index in range(self._plan.envelope.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, position: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the chunks for one delta."""
        if delta.usage is not None:
            self._usage = delta.usage
        text = delta.text
        calls: tuple[ToolCall, ...] = ()
        if self._parsers is not None:
            parser = self._parsers[delta.index]
            text = parser.feed(text)
            if delta.finish_reason is not None:
                rest, calls = parser.finish(cut=delta.finish_reason is FinishReason.LENGTH)
                text += rest
        logprobs = None
        if delta.logprobs:
            logprobs = chat_logprobs(self._service.model.tokenizer, delta.logprobs)
        if text or logprobs is not None:
            yield self._chunk(delta.index, {"content": text}, logprobs)
        for i, call in enumerate(calls):
            yield self._chunk(delta.index, {"tool_calls": [{"index": i, **_call_object(call)}]})
        if delta.finish_reason is not None:
            reason = _finish(delta.finish_reason, bool(calls))
            yield self._chunk(delta.index, {}, None, reason, delta.stop_reason)

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the usage chunk, where asked for."""
        if self._plan.envelope.include_usage and self._usage is not None:
            yield self._wrap([], usage_object(self._usage))


def _full_choice(service: Service, plan: Plan, index: int, choice: Choice) -> dict[str, Any]:
    content: str | None = choice.text
    calls: tuple[ToolCall, ...] = ()
    if plan.tools is not None:
        parser = ToolParser(plan.tools)
        before = parser.feed(choice.text)
        rest, calls = parser.finish(cut=choice.finish_reason is FinishReason.LENGTH)
        content = (before + rest) or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = [_call_object(call) for call in calls]
    logprobs = None
    if plan.request.params.logprobs is not None:
        logprobs = chat_logprobs(service.model.tokenizer, choice.logprobs)
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _finish(choice.finish_reason, bool(calls)),
        "stop_reason": choice.stop_reason,
    }


async def chat(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer `POST /v1/chat/completions`.

    Raises:
        ApiError: anything wrong before the first byte.
    """
    arrival = service.clock()
    plan = await service.intake.read(request, partial(_draft, service, request.headers))
    for constraint in plan.unchecked:
        await check_enforceable(service, constraint)
    if plan.envelope.stream:
        events = generate(service, [plan.request], arrival)
        return await stream_chunks(request, events, Chunks(service, plan), write_stall_s=service.limits.write_stall_s)
    (choices,), usages = await collect(service, [plan.request], arrival)
    return json_response(
        {
            **plan.head("chat.completion"),
            "choices": [_full_choice(service, plan, index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(total_usage(usages)),
        }
    )
