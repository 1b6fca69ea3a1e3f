"""From what a request demands to the text of a grammar, checked before it reaches the engine. Imports no torch."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from backend.grammar.lark_ends import endless_rule
from backend.grammar.schema_ends import endless_schema

__all__ = [
    "MISSING",
    "GrammarError",
    "any_json_object",
    "available",
    "check",
    "from_choices",
    "from_json_schema",
    "from_lark",
    "from_regex",
]

MISSING: Final = "constrained output needs the 'grammar' extra: pip install 'trimtab[grammar]'."

# Without a bound a small model can pad for ever with whitespace, which JSON allows between any two tokens.
_JSON_OPTIONS: Final = {"whitespace_pattern": r"[ \n\t]{0,16}", "coerce_one_of": True}


class GrammarError(ValueError):
    """A schema, expression or grammar that cannot be enforced; the message says which part."""


def available() -> bool:
    """Whether the grammar library is installed."""
    return importlib.util.find_spec("llguidance") is not None


def from_json_schema(schema: Mapping[str, Any]) -> str:
    """Return the grammar of the JSON documents that `schema` describes."""
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": _JSON_OPTIONS}}]})


def any_json_object() -> str:
    """Return the grammar of all JSON objects."""
    return from_json_schema({"type": "object"})


def from_lark(grammar: str) -> str:
    """Return a grammar given in Lark notation, with the library's additions."""
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


def from_regex(pattern: str) -> str:
    """Return the grammar of the texts that a regular expression matches in full (no look-around)."""
    return from_lark(f"start: /{_escape_slashes(pattern)}/")


def from_choices(choices: Sequence[str]) -> str:
    """Return the grammar of a few fixed texts."""
    return from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))


def check(grammar: str) -> None:
    """Compile `grammar` and forget it; see that whatever it lets begin can be finished.

    Raises:
        GrammarError: it cannot be enforced.
    """
    from llguidance import LLMatcher

    message: str = LLMatcher.validate_grammar(grammar)
    if message and not message.startswith("WARNING"):
        raise GrammarError(" ".join(message.split()))
    if (endless := _endless(grammar)) is not None:
        raise GrammarError(f"{endless} has no end: whatever is written, more of it has to follow")


def _endless(grammar: str) -> str | None:
    """Return what in a grammar has no end. The library would follow it until the bound on the tokens."""
    (content,) = json.loads(grammar)["grammars"]
    if "lark_grammar" in content:
        return endless_rule(content["lark_grammar"])
    path = endless_schema(content["json_schema"])
    return None if path is None else f"the schema at '{path}'"


def _escape_slashes(pattern: str) -> str:
    """Escape the slashes that would end a regular expression in Lark."""
    return re.sub(r"\\.|/", lambda found: r"\/" if found.group() == "/" else found.group(), pattern, flags=re.DOTALL)
