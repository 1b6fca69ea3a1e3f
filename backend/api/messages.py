"""Chat messages: checked, and brought into the shape that chat templates expect."""

from __future__ import annotations

from typing import Any, Final

from backend.api.body import parse_json
from backend.api.errors import InvalidRequest
from backend.api.fields import type_name

__all__ = ["MAX_MESSAGES", "read_messages"]

MAX_MESSAGES: Final = 4096
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def _bad(path: str, text: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"'{path}' {text}.", param=path, code=code)


def _text(path: str, content: Any) -> str:
    """Return content as text; a list of text parts is joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(path, f"must be a string or an array of text parts, not {type_name(content)}", "invalid_type")
    texts: list[str] = []
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            raise _bad(f"{path}[{i}]", f"must be an object, not {type_name(part)}", "invalid_type")
        kind = part.get("type")
        if kind not in ("text", "refusal"):
            raise _bad(f"{path}[{i}].type", f"must be 'text' (this model reads text only), but it is {kind!r}")
        text = part.get(kind)
        if not isinstance(text, str):
            raise _bad(f"{path}[{i}].{kind}", f"must be a string, not {type_name(text)}", "invalid_type")
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(path: str, calls: Any) -> list[dict[str, Any]]:
    """Check an assistant's earlier tool calls. Templates want the arguments as an object, OpenAI sends JSON text."""
    if not isinstance(calls, list) or not calls:
        raise _bad(path, "must be a non-empty array of tool calls", "invalid_type")
    found: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _bad(f"{path}[{i}]", "must be an object with function.name", "invalid_type")
        arguments = _arguments(f"{path}[{i}].function.arguments", function.get("arguments"))
        found.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return found


def _arguments(path: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = parse_json((value or "{}").encode(errors="surrogatepass"))
        except InvalidRequest:
            value = None
    if not isinstance(value, dict):
        raise _bad(path, "must be the JSON text of an object", "invalid_type")
    return value


def _message(path: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _bad(path, f"must be an object, not {type_name(raw)}", "invalid_type")
    role = raw.get("role")
    if role not in ROLES:
        raise _bad(f"{path}.role", f"must be one of {', '.join(map(repr, ROLES))}, but it is {role!r}")
    message: dict[str, Any] = {"role": role}
    calls = raw.get("tool_calls")
    if role == "assistant" and calls is not None:
        message["tool_calls"] = _tool_calls(f"{path}.tool_calls", calls)
    content = raw.get("content")
    if content is None:
        if "tool_calls" not in message:
            raise _bad(f"{path}.content", "is required", "missing_required_parameter")
        message["content"] = ""
    else:
        message["content"] = _text(f"{path}.content", content)
    for key in ("name", "tool_call_id"):
        if raw.get(key) is not None:
            if not isinstance(raw[key], str):
                raise _bad(f"{path}.{key}", f"must be a string, not {type_name(raw[key])}", "invalid_type")
            message[key] = raw[key]
    return message


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Check `messages` and return them with plain string contents.

    Raises:
        InvalidRequest: missing, empty, too many, or one of them is wrong (named by its path).
    """
    if value is None:
        raise _bad("messages", "is required", "missing_required_parameter")
    if not isinstance(value, list):
        raise _bad("messages", f"must be an array, not {type_name(value)}", "invalid_type")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise _bad("messages", f"must have between 1 and {MAX_MESSAGES} entries, but it has {len(value)}")
    return [_message(f"messages[{i}]", raw) for i, raw in enumerate(value)]
