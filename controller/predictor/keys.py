"""What makes two requests alike: stable 64-bit keys of a prompt and of the template it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

__all__ = ["HEAD", "TAIL", "all_keys", "any_model_key", "prompt_key", "size_key", "system_prompt", "template_keys"]

HEAD, TAIL = 2000, 500
"""Characters looked at, at the start and at the end. Bounds the cost of a prompt of any length."""

OPENING = 48
"""Characters of a prompt's opening that stand for its template when nothing better is known."""

_DIGITS = str.maketrans("0123456789", "0" * 10)


def prompt_key(model: str, text: str) -> int:
    """Key of this very prompt to this model: head, tail and length, so that cost is bounded. 0 without text."""
    if not text:
        return 0
    seen = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\0{len(text)}\0{text[-TAIL:]}"
    return _digest(model, "p", seen)


def any_model_key(text: str) -> int:
    """Key of this very prompt to whichever model."""
    return prompt_key("", text)


def template_keys(
    model: str, route: str, text: str, system: str = "", prefix_group: object = None
) -> tuple[int, int]:
    """Keys of the explicit group (prefix group or system prompt) and of the opening; 0 where there is none.

    Digits in the opening count as equal, so that numbered or dated prompts of one template meet.
    """
    group = 0
    if prefix_group is not None:
        group = _digest(model, "g", str(prefix_group))
    elif system:
        group = _digest(model, "s", system if len(system) <= HEAD else f"{system[:HEAD]}\0{len(system)}")
    opening = _digest(model, "o" + route, text[:OPENING].translate(_DIGITS)) if len(text) > OPENING else 0
    return group, opening


def size_key(model: str, prompt_tokens: int) -> int:
    """Key of prompts of exactly this size: where prompts come from templates, size tells them apart."""
    return _digest(model, "n", str(prompt_tokens)) if prompt_tokens > 0 else 0


def system_prompt(params: Mapping[str, Any] | None) -> str:
    """Return the system prompt of a chat request's decoded body, empty where there is none."""
    if not params:
        return ""
    messages = params.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    if isinstance(first, Mapping) and first.get("role") in ("system", "developer"):
        content = first.get("content")
        return content if isinstance(content, str) else ""
    system = params.get("system")
    return system if isinstance(system, str) else ""


def all_keys(
    model: str, route: str, text: str, params: Mapping[str, Any] | None, prompt_tokens: int, prefix_group: object
) -> list[tuple[str, int]]:
    """Return (level, key) for every level under which history knows requests like this one, widest first."""
    group, opening = template_keys(model, route, text, system_prompt(params), prefix_group)
    keys = [("size", 0 if text else size_key(model, prompt_tokens)), ("opening", opening), ("group", group)]
    if text:
        keys += [("elsewhere", any_model_key(text)), ("prompt", prompt_key(model, text))]
    return [key for key in keys if key[1]]


def _digest(model: str, kind: str, seen: str) -> int:
    raw = f"{kind}\0{model}\0{seen}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")
