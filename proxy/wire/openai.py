"""OpenAI's API as its servers speak it: chat, completions, embeddings, responses, models; vLLM's scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Repeat, Reply, Route, Tap, WireFormat
from proxy.wire.embeddings import is_embeddings, split_embeddings
from proxy.wire.envelope import SERVER_FIELDS, check_shared, own_id
from proxy.wire.faults import Fault, bare_error, load_error, object_error, status_of
from proxy.wire.items import by_index, merged_body, pass_on, read_items
from proxy.wire.jsonbody import canonical, load_object, model_name, positive, whole
from proxy.wire.openai_stream import ChatTap, CompletionTap, ResponsesTap
from proxy.wire.prompt import BYTES_PER_TOKEN, Prompt, estimate, excerpt, read_messages, read_plain
from proxy.wire.sse import comment
from proxy.wire.tail import TailTap
from proxy.wire.usage import split_usage
from proxy.wire.vectors import load_reply

__all__ = ["OpenAI"]

CHAT: Final = Route("chat.completions")
COMPLETIONS: Final = Route("completions")
EMBEDDINGS: Final = Route("embeddings", generates=False, auto_merge=True, pure=True)
RESPONSES: Final = Route("responses")
SCORES: Final = Route("scores", generates=False, pure=True)
MODELS: Final = Route("models", inspect=False, queued=False, generates=False)

_POST: Final = {
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/embeddings": EMBEDDINGS,
    "/responses": RESPONSES,
    "/score": SCORES,
    "/classify": SCORES,
    "/pooling": SCORES,
}
_V1: Final = {"/v1" + path: route for path, route in _POST.items()}
_PREFIX: Final = re.compile(r"|.*/v[0-9]+(?:beta)?|(?:/.*)?/openai(?:/.*)?")
"""What may stand before an operation: nothing, a version under any prefix, an Azure-style deployment."""

MAX_SEQUENCES: Final = 128
"""The most sequences one request counts as, however large its `n` is."""

# Fields under which completions of a list are not simply the completions of its members.
_UNMERGEABLE: Final = ("n", "best_of", "seed", "suffix", "prompt_embeds", "use_beam_search", "stream_options")

_OF_A_CHOICE: Final = frozenset(
    {
        "finish_reason", "index", "logprobs", "matched_stop", "native_finish_reason", "prompt_logprobs",
        "prompt_token_ids", "stop_reason", "text", "token_ids",
    }
)  # fmt: skip
"""What a choice says of its own prompt; words elsewhere may be about another."""
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}


class OpenAI(WireFormat):
    """The `openai` wire format.

    Embeddings and non-streaming completions merge as list inputs; results are mapped back by `index`, checked, and
    usage is divided to the last token. Chats and responses go one by one and their bodies are never rewritten.
    Paths are recognised under any prefix, as gateways and Azure-style deployments have them.
    """

    name = "openai"
    routes = (
        CHAT,
        COMPLETIONS,
        EMBEDDINGS,
        RESPONSES,
        SCORES,
        MODELS,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`, whatever the prefix before it."""
        if method == "POST":
            route = _V1.get(path)
            if route is not None:
                return route
            for suffix, candidate in _POST.items():
                if path.endswith(suffix) and _PREFIX.fullmatch(path, 0, len(path) - len(suffix)):
                    return candidate
            return None
        if method in ("GET", "HEAD") and (path.endswith("/v1/models") or "/v1/models/" in path):
            return MODELS
        return None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object or the model no string."""
        if not route.inspect:
            return Call(route, body)
        payload = load_object(head, body)
        if payload is None:
            return Call(route, body)
        model = model_name(payload)
        if route is CHAT:
            return _chat(body, payload, model)
        if route is EMBEDDINGS:
            return _embeddings(head, body, payload, model)
        if route is COMPLETIONS:
            return _completions(head, body, payload, model)
        if route is RESPONSES:
            return _responses(body, payload, model)
        return Call(route, body, model, payload=payload, prompt_tokens=len(body) // BYTES_PER_TOKEN + 1)

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": {message, type, param, code}}`."""
        return Reply(status, orjson.dumps(_error(status, kind, message, param)))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": {...}}`; a bare text is one where no other server means the path."""
        return object_error(document) or (call.certain and bare_error(document))

    def fault(self, call: Call, data: bytes) -> Fault | None:
        """Return the error that `data` is. A response object that says it failed stays what it is: it has an id."""
        document = load_error(data)
        if document is None:
            return None
        if call.route is RESPONSES:
            response = document.get("response", document)
            if type(response) is dict and response.get("object") == "response":
                failed = response.get("status") == "failed" and type(response.get("error")) is dict
                return Fault(status_of(response), data, kept=True) if failed else None
            if document.get("type") == "error" and "message" in document:
                return Fault(status_of(document), data)
        return Fault(status_of(document), data) if self.error_in(call, document) else None

    def repeat(self, call: Call) -> int:
        """Return Repeat.NEVER for what is stored, which responses are unless they say `store: false`."""
        route = call.route
        if route.pure:
            return Repeat.FREELY
        payload = call.payload
        if type(payload) is not dict or (route is RESPONSES and payload.get("store") is not False):
            return Repeat.NEVER
        stored = route is not COMPLETIONS and (payload.get("store") is True or bool(payload.get("background")))
        return Repeat.NEVER if stored else Repeat.ANSWERED

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return an error event, as OpenAI's own clients understand it inside a stream. No `[DONE]` follows it."""
        return b"data: " + orjson.dumps(_error(502, kind, message, None)) + b"\n\n"

    def keepalive(self) -> bytes:
        """Return a server-sent comment."""
        return comment()

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader of the answer's usage."""
        if not content_type.startswith("text/event-stream"):
            return TailTap()
        if call.route is CHAT:
            return ChatTap()
        return ResponsesTap() if call.route is RESPONSES else CompletionTap()

    def recognises(self, call: Call, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it is a list of embeddings in OpenAI's own words, one for each input."""
        return call.route is EMBEDDINGS and is_embeddings(body, call.items)

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body whose `input` or `prompt` lists everybody's items."""
        return merged_body(calls, _field(calls[0]), [call.extra["items"] for call in calls])

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Map results back by index and divide the usage."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        if calls[0].route is EMBEDDINGS:
            return split_embeddings(calls, status, body)
        return _split_completions(calls, status, body)


def _chat(body: bytes, payload: dict[str, Any], model: str) -> Call:
    messages, tools = payload.get("messages"), payload.get("tools")
    plain = None if tools else read_plain(messages)
    if plain is None:
        prompt = Prompt()
        read_messages(messages, prompt)
        if tools:
            prompt.add_json(tools)
        plain = prompt.tokens, prompt.text
    limit = payload.get("max_completion_tokens")
    if limit is None:
        limit = payload.get("max_tokens")
    n = payload.get("n")
    return Call(
        CHAT,
        body,
        model,
        bool(payload.get("stream")),
        1 if n is None else positive(n, 1, MAX_SEQUENCES),
        plain[0],
        None if limit is None else whole(limit),
        None,
        payload,
        plain[1],
    )


def _responses(body: bytes, payload: dict[str, Any], model: str) -> Call:
    prompt = Prompt()
    instructions = payload.get("instructions")
    if type(instructions) is str:
        prompt.add(instructions)
    given = payload.get("input")
    if type(given) is str:
        prompt.add(given)
    else:
        read_messages(given, prompt)
    tools = payload.get("tools")
    if tools:
        prompt.add_json(tools)
    return Call(
        route=RESPONSES,
        body=body,
        model=model,
        stream=bool(payload.get("stream")),
        prompt_tokens=prompt.tokens,
        max_tokens=whole(payload.get("max_output_tokens")),
        payload=payload,
        text=prompt.text,
    )


def _embeddings(head: Head, body: bytes, payload: dict[str, Any], model: str) -> Call:
    call = Call(route=EMBEDDINGS, body=body, model=model, payload=payload)
    _read_list(call, head, "input")
    return call


def _completions(head: Head, body: bytes, payload: dict[str, Any], model: str) -> Call:
    stream = bool(payload.get("stream"))
    call = Call(
        route=COMPLETIONS,
        body=body,
        model=model,
        stream=stream,
        max_tokens=whole(payload.get("max_tokens")),
        payload=payload,
    )
    _read_list(call, head, "prompt")
    sequences = max(positive(payload.get("n"), 1, MAX_SEQUENCES), positive(payload.get("best_of"), 1, MAX_SEQUENCES))
    # What `n` claims counts only as far as a single prompt's could: the prompts are there, the multiple is not.
    call.items = max(call.items, min(call.items * sequences, MAX_SEQUENCES))
    if stream or not all(_absent(name, payload.get(name)) for name in _UNMERGEABLE):
        call.compat_key = None
    return call


def _absent(name: str, value: Any) -> bool:
    """Tell whether a field is as good as not there."""
    return value is None or value is False or (name in ("n", "best_of") and type(value) is int and value == 1)


def _read_list(call: Call, head: Head, field: str) -> None:
    """Fill in the items of a call, their cost, and the key under which they may be merged with others'."""
    value = call.payload.get(field)
    items = read_items(value)
    if items is None:
        call.items = max(1, len(value)) if type(value) is list else 1
        call.prompt_tokens = estimate(value)
        return
    values = items.values
    tokens = chars = 0
    for item in values:
        tokens += estimate(item)
        chars += len(item)
    call.items = len(values)
    call.prompt_tokens = tokens
    call.extra["items"] = values
    if items.kind == "text":
        call.text = excerpt(values, chars)
    rest = canonical(call.payload, ("model", field))
    if rest is not None:
        call.compat_key = (call.route.name, head.target, call.model, items.kind, rest)


def _field(call: Call) -> str:
    return "input" if call.route is EMBEDDINGS else "prompt"


def _split_completions(calls: Sequence[Call], status: int, body: bytes) -> list[Reply]:
    items = [call.extra["items"] for call in calls]
    envelope = load_reply(body)
    check_shared(envelope, SERVER_FIELDS)
    choices = by_index(envelope.get("choices"), sum(map(len, items)))
    for choice in choices:
        if type(choice.get("text")) is not str:
            raise MergeMismatch("a choice holds no text")
        check_shared(choice, _OF_A_CHOICE)
    grouped, start = [], 0
    for values in items:
        grouped.append(choices[start : start + len(values)])
        start += len(values)
    outputs = [sum(map(_output_weight, mine)) for mine in grouped]
    bills = split_usage(envelope.get("usage"), [call.prompt_tokens for call in calls], outputs)
    replies = []
    for position, (mine, bill) in enumerate(zip(grouped, bills, strict=True)):
        for index, choice in enumerate(mine):
            choice["index"] = index
        answer = {**envelope, "choices": mine}
        if "id" in envelope:
            answer["id"] = own_id(envelope["id"], position)
        if "usage" in envelope:
            answer["usage"] = bill
        replies.append(Reply(status, orjson.dumps(answer)))
    return replies


def _output_weight(choice: dict[str, Any]) -> int:
    """Estimate the output tokens of a choice, by its token list where it has one."""
    for holder, name in ((choice, "token_ids"), (choice.get("logprobs"), "tokens")):
        listed = holder.get(name) if type(holder) is dict else None
        if type(listed) is list:
            return len(listed)
    return estimate(choice.get("text"))


def _error(status: int, kind: str, message: str, param: str | None) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
            "param": param,
            "code": kind,
        }
    }
