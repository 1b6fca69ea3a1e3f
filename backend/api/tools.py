"""Tool calls: what a request declares, and finding the calls in what the model writes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from backend.api.constraints import require_grammar
from backend.api.errors import InvalidRequest
from backend.api.fields import boolean, type_name
from backend.grammar import source

__all__ = [
    "HERMES",
    "LLAMA",
    "MAX_TOOLS",
    "ToolCall",
    "ToolParser",
    "Tools",
    "call_grammar",
    "parameter_grammars",
    "read_tools",
    "tool_format_of",
]

HERMES: Final = "hermes"
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them: Hermes, Qwen2.5, Qwen3."""
LLAMA: Final = "llama"
"""The whole answer is `{"name": ..., "parameters": {...}}`, several separated by `;`: Llama 3.1 to 3.3."""

MAX_TOOLS: Final = 128
PARALLEL: Final = boolean("parallel_tool_calls", True)
OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
PYTHON_TAG: Final = "<|python_tag|>"
BEGINNING: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")'
    r'(?:\s*,\s*"(?:arguments|parameters)"\s*:\s*(?P<arguments>\{.*))?',
    re.DOTALL,
)
"""A call's JSON that may lack its end."""


class ToolCall(NamedTuple):
    """One call the model wants made."""

    id: str
    name: str
    arguments: str
    """JSON, as text."""


class Tools(NamedTuple):
    """The tools of one request, for the template and for the parser."""

    declared: list[dict[str, Any]]
    names: frozenset[str]
    format: str
    forced: bool = False
    """A call must be made: the whole answer is one, `{"name": ..., "arguments": {...}}`, by grammar."""
    parallel: bool = True
    """Whether one answer may hold several calls; otherwise only the first counts."""


def tool_format_of(chat_template: str | None) -> str | None:
    """Tell from a chat template how its model writes tool calls; None where it knows none."""
    if chat_template is None or "tools" not in chat_template:
        return None
    if OPEN in chat_template:
        return HERMES
    return LLAMA if "parameters" in chat_template else None


def _bad(path: str, text: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"'{path}' {text}", param=path, code=code)


def _declared(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise _bad("tools", f"must be an array, not {type_name(value)}.", "invalid_type")
    if len(value) > MAX_TOOLS:
        raise _bad("tools", f"may have at most {MAX_TOOLS} entries, but it has {len(value)}.")
    for i, tool in enumerate(value):
        path = f"tools[{i}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise _bad(path, "must be an object of type 'function'.", "invalid_type")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise _bad(f"{path}.function", "must be an object with a name.", "invalid_type")
        if not isinstance(function.get("parameters", {}), dict):
            raise _bad(f"{path}.function.parameters", "must be a JSON schema object.", "invalid_type")
    return value


def read_tools(body: Mapping[str, Any], tool_format: str | None) -> Tools | None:
    """Check `tools` and `tool_choice`; None when there is nothing to call.

    Raises:
        InvalidRequest: malformed, or something this model cannot do.
    """
    tools = [] if body.get("tools") is None else _declared(body["tools"])
    names = frozenset(tool["function"]["name"] for tool in tools)
    choice = body.get("tool_choice")
    forced = choice == "required"
    if isinstance(choice, dict):
        names, forced = frozenset({_named(choice, names)}), True
    elif choice not in (None, "auto", "none", "required"):
        raise _bad("tool_choice", f"must be 'auto', 'none', 'required' or a function, but it is {choice!r}.")
    if not tools and choice in ("auto", "required"):
        raise _bad("tool_choice", "is only allowed when 'tools' are given.")
    parallel: bool = PARALLEL.read(body)
    if not tools or choice == "none":
        return None
    if tool_format is None:
        raise _bad("tools", "is not supported: this model's chat template knows no tools.", "unsupported_parameter")
    if forced:
        require_grammar("tool_choice")
    return Tools(tools, names, tool_format, forced, parallel)


def _named(choice: Mapping[str, Any], names: frozenset[str]) -> str:
    """Return the function that `tool_choice` names."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or name not in names:
        raise _bad("tool_choice", "must name a function of 'tools': {'type': 'function', 'function': {'name': ...}}.")
    return str(name)


def parameter_grammars(tools: Tools) -> list[tuple[str, str]]:
    """Return the grammar of each schema in `call_grammar`, with the path of the field that it comes from."""
    return [
        (source.from_json_schema(parameters), f"tools[{i}].function.parameters")
        for i, function in enumerate(tool["function"] for tool in tools.declared)
        if function["name"] in tools.names and (parameters := function.get("parameters"))
    ]


def call_grammar(tools: Tools) -> str:
    """Return the grammar of exactly one call of one of `tools.names`.

    Each function's parameters are a document of their own: an `$id` makes references in them start there.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": {"$id": f"urn:function:{i}", **(function.get("parameters") or {"type": "object"})},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for i, function in enumerate(tool["function"] for tool in tools.declared)
        if (name := function["name"]) in tools.names
    ]
    return source.from_json_schema({"anyOf": calls})


class ToolParser:
    """Separates one choice's text, as it comes, into content and tool calls.

    Content is passed on as soon as it cannot be the beginning of a call. What looks like a call is held until the
    choice ends; if it does not parse, it is handed out as the text it was.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._held = ""
        self._calling = tools.forced
        self._plain = False

    def feed(self, text: str) -> str:
        """Take more text; return what is certainly content."""
        if self._plain:
            return text
        self._held += text
        if self._calling:
            return ""
        return self._feed_hermes() if self._tools.format == HERMES else self._feed_llama()

    def _feed_hermes(self) -> str:
        start = self._held.find(OPEN)
        self._calling = start >= 0
        if not self._calling:
            start = len(self._held) - _held_back(self._held, OPEN)
        content, self._held = self._held[:start], self._held[start:]
        return content

    def _feed_llama(self) -> str:
        """A call can only be the whole answer, so the first characters decide."""
        head = self._held.lstrip()
        if head.startswith(("{", PYTHON_TAG)):
            self._calling = True
        elif head and not PYTHON_TAG.startswith(head):
            self._plain = True
            content, self._held = self._held, ""
            return content
        return ""

    def finish(self, *, cut: bool = False) -> tuple[str, tuple[ToolCall, ...]]:
        """End the choice: return the content still held, and the calls.

        Where the text was `cut` by the bound on its tokens, the call under way is reported as far as it came, once
        its name is known: its arguments are then the beginning of a JSON object.
        """
        held, self._held = self._held, ""
        if not self._calling:
            return held, ()
        hermes = self._tools.format == HERMES and not self._tools.forced
        try:
            rest, calls = (_parse_hermes if hermes else _parse_llama)(held, cut)
        except ValueError:
            calls = ()
        if not calls:
            return self._unnamed(held, cut)
        if not hermes and any(call.name not in self._tools.names for call in calls):
            return held, ()  # JSON that was the answer itself
        return rest, calls if self._tools.parallel else calls[:1]

    def _unnamed(self, held: str, cut: bool) -> tuple[str, tuple[ToolCall, ...]]:
        """End with text that is no call, unless it is the beginning of one that had to be made."""
        if not (self._tools.forced and cut):
            return held, ()
        names = self._tools.names
        return "", tuple(_make_call(name, "") for name in names) if len(names) == 1 else ()


def _held_back(text: str, marker: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _make_call(name: str, arguments: str) -> ToolCall:
    return ToolCall("call_" + uuid.uuid4().hex[:24], name, arguments)


def _call(value: Any, *argument_keys: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a tool call is an object with a name")
    arguments: Any = next((value[key] for key in argument_keys if key in value), {})
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a tool call are an object")
    return _make_call(value["name"], orjson.dumps(arguments).decode())


def _beginning(text: str) -> ToolCall:
    """Read the beginning of a call's JSON; raises ValueError where the name is not complete."""
    match = BEGINNING.match(text)
    if match is None:
        raise ValueError("a tool call that was cut short before the end of its name")
    return _make_call(json.loads(match["name"]), match["arguments"] or "")


def _parse_hermes(text: str, cut: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """Parse `<tool_call>..</tool_call>` blocks; the last may lack its end (it is often the stop token)."""
    calls: list[ToolCall] = []
    rest = ""
    for block in text.split(OPEN)[1:]:
        inner, close, after = block.partition(CLOSE)
        try:
            calls.append(_call(json.loads(inner), "arguments", "parameters"))
        except ValueError:
            if close or not cut:
                raise
            calls.append(_beginning(inner))
        rest += after
    return rest if rest.strip() else "", tuple(calls)


def _parse_llama(text: str, cut: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """Parse a `;`-separated row of JSON values."""
    text = text.replace(PYTHON_TAG, "")
    decoder = json.JSONDecoder()
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n;":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            if not cut:
                raise
            calls.append(_beginning(text[at:]))
            break
        calls.append(_call(value, "parameters", "arguments"))
    return "", tuple(calls)
