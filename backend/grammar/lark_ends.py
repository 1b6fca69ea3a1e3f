"""Lark grammars without an end: those with a rule that always asks for itself again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from backend.grammar.productions import Productions
from backend.grammar.schema_ends import endless_schema

__all__ = ["endless_rule"]

START: Final = "start"
Symbol = tuple[str, int]
"""A rule's name and 0, or the number of one of its groups."""

_TOKENS: Final = re.compile(
    r"""(?P<space>(?:\#|//)[^\n]*|[ \t]+)
    |(?P<newline>(?:\r?\n)+[ \t]*)
    |(?P<json>%(?:json|regex|llguidance)(?=\s*\{))
    |(?P<special><[^<>\s]+>)
    |(?P<text>"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<name>!?[_?]?[A-Za-z][A-Za-z_0-9\-]*)
    |(?P<number>[+-]?[0-9]+)
    |(?P<mark>->|::|\.\.|%[a-z]+|[:,.(){}\[\]~|&=_*+?@])""",
    re.VERBOSE,
)
_SPACE: Final = re.compile(r"\s*")
_UNDECIDED: Final = {"::", "%if", "%lark", "%override", "@"}
"""What makes rules depend on more than their names: such grammars are left to the library."""


class _Token(NamedTuple):
    kind: str
    text: str


class _Undecided(Exception):
    """The grammar has a part that this reading does not understand."""


def endless_rule(grammar: str) -> str | None:
    """Return what can be entered and has no finite text, as words for a message; None where there is no such thing.

    `grammar` is one that the library has compiled. What is undecided is taken to have an end.
    """
    try:
        reader = _Reader(grammar)
    except _Undecided:
        return None
    if (START, 0) not in reader.productions:
        return None
    if (found := reader.productions.endless((START, 0))) is not None:
        return f"the rule '{found[0]}'"
    return next((f"the schema at '{path}'" for path in reader.schemas if path is not None), None)


class _Reader:
    """Recursive descent over the rules. Terminals cannot be recursive, so each of them has an end."""

    def __init__(self, grammar: str) -> None:
        self.productions: Productions[Symbol] = Productions()
        self.schemas: list[str | None] = []
        """What is endless in each inline schema."""
        self._tokens = list(self._lex(grammar))
        self._place = 0
        self._rule = ""
        self._groups = 0
        while self._place < len(self._tokens):
            self._read_line()

    def _lex(self, grammar: str) -> Iterator[_Token]:
        at = 0
        while at < len(grammar):
            match = _TOKENS.match(grammar, at)
            if match is None or match.group() in _UNDECIDED:
                raise _Undecided
            at, kind = match.end(), str(match.lastgroup)
            if kind == "json":
                start = at + len(_SPACE.match(grammar, at).group())  # type: ignore[union-attr]  # it matches anything
                try:
                    value, at = json.JSONDecoder().raw_decode(grammar, start)
                except ValueError:
                    raise _Undecided from None
                if match.group() == "%json" and isinstance(value, dict):
                    self.schemas.append(endless_schema(value))
            if kind != "space":
                yield _Token(kind, match.group())
        yield _Token("newline", "\n")

    def _read_line(self) -> None:
        """Read a definition, or pass over a line that is none."""
        name = token = self._next()
        while token.kind != "newline" and not (name.kind == "name" and token.text == ":"):
            token = self._next()
        if token.text == ":":
            self._rule, self._groups = name.text.lstrip("!?"), 0
            self._read_choice((self._rule, 0))

    def _read_choice(self, symbol: Symbol) -> None:
        """Read alternatives up to the end of the line or the group, and define `symbol` by them."""
        alternatives: list[list[Symbol]] = [self._read_sequence(symbol)]
        while self._next_alternative():
            alternatives.append(self._read_sequence(symbol))
        self.productions.define(symbol, alternatives)

    def _next_alternative(self) -> bool:
        place = self._place
        while (token := self._peek()) is not None and token.kind == "newline":
            self._place += 1
        if token == _Token("mark", "|"):
            self._place += 1
            return True
        self._place = place
        return False

    def _read_sequence(self, symbol: Symbol) -> list[Symbol]:
        """Read one alternative and return what must be complete in it."""
        needed: list[Symbol] = []
        while (token := self._peek()) is not None and token.kind != "newline" and token.text not in ("|", ")", "]"):
            self._place += 1
            part: Symbol | None = None
            if token.text in ("(", "["):
                self._groups += 1
                part = (self._rule, self._groups)
                self._read_choice(part)
                while self._next().kind == "newline":
                    pass
            elif token.kind == "name" and token.text == token.text.lower():
                part = (token.text.lstrip("!?"), 0)
            elif token.text == "->":
                self._next()
            if part is not None:
                self.productions.mention(symbol, [part])
                if token.text != "[" and self._repetition() > 0:
                    needed.append(part)
        return needed

    def _repetition(self) -> int:
        """Read how often the last part comes, and return the least."""
        token = self._peek()
        if token is None or token.text not in ("?", "*", "+", "~", "{"):
            return 1
        self._place += 1
        if token.text in ("?", "*", "+"):
            return int(token.text == "+")
        least = self._peek()
        assert least is not None
        if token.text == "{":
            while self._next().text != "}":
                pass
        return int(least.text) if least.kind == "number" else 0

    def _peek(self) -> _Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _next(self) -> _Token:
        token = self._peek()
        if token is None:
            raise _Undecided
        self._place += 1
        return token
