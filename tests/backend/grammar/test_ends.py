"""Grammars that can be entered and never finished are found, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.grammar.lark_ends import endless_rule
from backend.grammar.productions import Productions
from backend.grammar.schema_ends import endless_schema

SELF = {"$ref": "#"}
NULL = {"type": "null"}


def holds(*, required: bool = True, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members) if required else []}


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (SELF, "#"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#"),
        (holds(a=SELF), "#"),
        (holds(a=NULL, b=holds(c=SELF)), "#"),
        ({"type": "object", "required": ["a"], "additionalProperties": SELF}, "#"),
        ({"type": "object", "minProperties": 1, "additionalProperties": SELF}, "#"),
        ({"type": "array", "items": SELF, "minItems": 1}, "#"),
        ({"type": "array", "prefixItems": [NULL, SELF], "minItems": 2}, "#"),
        ({"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 2}, "#"),
        ({"anyOf": [holds(a=SELF), {"type": "array", "items": SELF, "minItems": 3}]}, "#"),
        ({"oneOf": [SELF, holds(a=SELF)]}, "#"),
        ({"allOf": [holds(a=SELF), {"type": "object"}]}, "#"),
        (holds(a=SELF) | {"type": ["object", "array"], "items": SELF, "minItems": 1}, "#"),
        (holds(required=False, next={"$ref": "#/$defs/n"}) | {"$defs": {"n": holds(n={"$ref": "#/$defs/n"})}},
         "#/properties/next"),
        ({"type": "array", "items": holds(a={"$ref": "#/items"})}, "#/items"),
        ({"anyOf": [NULL, holds(a={"$ref": "#/anyOf/1"})]}, "#/anyOf/1"),
        (holds(required=False, **{"a/b~": holds(x={"$ref": "#/properties/a~1b~0"})}), "#/properties/a~1b~0"),
        (holds(required=False, **{"%": holds(x={"$ref": "#/properties/%25"})}), "#/properties/%"),
        (holds(required=False, a={"$id": "urn:a", **holds(b=SELF)}), "#/properties/a"),
    ],
)  # fmt: skip
def test_schema_without_an_end_is_named_by_its_place(schema: dict[str, Any], where: str) -> None:
    assert endless_schema(schema) == where


@pytest.mark.parametrize(
    "schema",
    [
        {},
        holds(required=False, a=SELF),
        holds(a={"anyOf": [SELF, NULL]}),
        holds(a={"type": "array", "items": SELF}),
        holds(a=SELF) | {"type": ["object", "null"]},
        {"properties": {"a": SELF}, "required": ["a"]},
        holds(a=SELF) | {"type": ["object", "array"], "items": SELF},
        {"type": "object", "additionalProperties": SELF},
        {"type": "array", "prefixItems": [SELF], "minItems": 0},
        {"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 1},
        {"const": SELF},
        {"enum": [{"$ref": "#"}]},
        {"$ref": "https://example.com/elsewhere"},
        {"$ref": "#somewhere"},
        {"$ref": "#/nowhere"},
        holds(a={"$id": "urn:a", "$ref": "#/$defs/x", "$defs": {"x": NULL}}),
        holds(**{"$id": NULL}),
        {"anyOf": [False, SELF, NULL]},
        {"$defs": {"never": {"$ref": "#/$defs/never"}}, **holds(a=NULL)},
        {"type": "object", "properties": 5, "required": "a", "items": 7, "allOf": 3, "anyOf": None},
    ],
)
def test_schema_that_some_document_fits_has_an_end(schema: dict[str, Any]) -> None:
    assert endless_schema(schema) is None


@pytest.mark.parametrize(
    ("grammar", "what"),
    [
        ('start: "a" start', "'start'"),
        ('start: start "a"', "'start'"),
        ("start: start", "'start'"),
        ('start: "a" b\nb: "b" start | "c" start', "'start'"),
        ('start: "x" | "y" t\nt: "a" t', "'t'"),
        ('start: ("a" start)+', "'start'"),
        ('start: ("a" start){2,3}', "'start'"),
        ('start: ("a" start) ~ 1..2', "'start'"),
        ('start: "a"\n  | ( "b"\n  | t )\n\n# it goes on\nt: "(" t ")"', "'t'"),
        ('start: /\\/x/ "#" t?  // what follows is not part of it: |\n!t.2: "|" t -> again', "'t'"),
        ('?start: T t?\nT: /a+/\n?t[capture="x:]"]: T t', "'t'"),
        ("start: (t)\nt: [t] t", "'start'"),
        ('%ignore / /\nstart: %json {"$ref": "#"}', "the schema at '#'"),
        ('%import common.INT\nstart: INT %json {"type": "array", "items": {"$ref": "#/items"}}', "'#/items'"),
        ('%llguidance {"ignore_once": true}\nstart: <|special|> start', "'start'"),
    ],
)
def test_rule_without_an_end_is_named(grammar: str, what: str) -> None:
    assert what in (endless_rule(grammar) or "")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start | "b"',
        'start: "a" start\n  | "b"',
        'start: "a" start |',
        'start: ("a" start)?',
        'start: ("a" start)*',
        'start: "a" ["b" start]',
        'start: ("a" start){,3}',
        'start: ("a" start){0,3}',
        'start: ("a" start) ~ 0..3',
        'start: "start: start" /start: start/ | %regex {"substring_words": "start start"}',
        'start: "a" b\nb: "b" start | c\nc: ("x" | "y" c) start?',
        'start: %json {"type": "object"} start?',
        'start: "a"\nunused: "b" unused',
        "start: e\ne: t (/[+-]/ t)*\nt: f (/[*]/ f)*\nf: NUMBER | \"(\" e \")\"\nNUMBER: /[0-9]+/\n",
        'start: perm::0x0\nperm::_: "a" perm::set_bit(0) %if bit_clear(0) |',
        "start: %lark { start: \"a\" }",
        "start: /unclosed",
    ],
)  # fmt: skip
def test_rule_that_some_text_fits_has_an_end(grammar: str) -> None:
    assert endless_rule(grammar) is None


@given(st.dictionaries(st.integers(0, 5), st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=3), min_size=1))
@settings(max_examples=300, deadline=None)
def test_what_is_endless_is_what_no_tree_of_bounded_height_derives(rules: dict[int, list[list[int]]]) -> None:
    """A symbol that derives anything derives it with a tree no higher than there are symbols."""
    start = min(rules)
    productions: Productions[int] = Productions()
    for symbol, alternatives in rules.items():
        productions.define(symbol, alternatives)
    derives = {symbol: symbol not in rules for symbol in range(7)}
    for _ in rules:
        derives = {s: d or any(all(derives[n] for n in a) for a in rules[s]) for s, d in derives.items()}
    reachable, before = {start}, set()
    while reachable != before:
        before = set(reachable)
        reachable |= {n for s in before & rules.keys() for a in rules[s] for n in a}
    found = productions.endless(start)
    assert (found is None) == all(derives[symbol] for symbol in reachable)
    assert found is None or (found in reachable and not derives[found])
