"""Tool calls in the output: the same calls and the same content, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.api.errors import InvalidRequest
from backend.api.tools import HERMES, LLAMA, ToolParser, Tools, call_grammar, read_tools, tool_format_of
from backend.grammar import source
from tests.backend.api.conftest import StartWorker

ONE = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TWO = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'

CASES = [
    # (format, text, content, [(name, arguments)])
    (HERMES, "plain answer", "plain answer", []),
    (HERMES, ONE, "", [("f", {"x": 1})]),
    (HERMES, "hm <" + ONE + "\n" + TWO, "hm <", [("f", {"x": 1}), ("g", {})]),
    (HERMES, ONE.removesuffix("</tool_call>"), "", [("f", {"x": 1})]),
    (HERMES, ONE + " done", " done", [("f", {"x": 1})]),
    (HERMES, "a <tool_call>{broken", "a <tool_call>{broken", []),
    (HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    (HERMES, "ends in <tool_c", "ends in <tool_c", []),
    (LLAMA, "plain {answer}", "plain {answer}", []),
    (LLAMA, '{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": "é"}}', "",
     [("f", {}), ("g", {"y": "é"})]),
    (LLAMA, '  {"name": "unknown", "parameters": {}}', '  {"name": "unknown", "parameters": {}}', []),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA, '{"name": "f", "parameters": {', '{"name": "f", "parameters": {', []),
    (LLAMA, "<|pyth is no tag", "<|pyth is no tag", []),
    (LLAMA, " ", " ", []),
]  # fmt: skip


def tools(kind: str) -> Tools:
    declared = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    return Tools(declared, frozenset({"f", "g"}), kind)


@pytest.mark.parametrize(("kind", "text", "content", "calls"), CASES)
def test_calls_are_found_and_the_rest_is_content(
    kind: str, text: str, content: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    parser = ToolParser(tools(kind))
    before = parser.feed(text)
    rest, found = parser.finish()
    assert before + rest == content
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert len({call.id for call in found}) == len(found)


@settings(max_examples=150)
@given(st.sampled_from(CASES), st.data())
def test_how_the_text_is_cut_changes_nothing(case: tuple[str, str, str, list[object]], data: st.DataObject) -> None:
    kind, text, content, calls = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parser = ToolParser(tools(kind))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    before = "".join(map(parser.feed, pieces))
    rest, found = parser.finish()
    assert before + rest == content
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@given(st.text(alphabet="<tol_ca> x", max_size=40))
def test_text_without_a_call_streams_through_unchanged(text: str) -> None:
    parser = ToolParser(tools(HERMES))
    parts = [parser.feed(character) for character in text]
    rest, found = parser.finish()
    assert "".join(parts) + rest == text
    assert found == ()
    assert len(rest) < len("<tool_call>") or "<tool_call>" in text


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %}', LLAMA),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", None),
    ],
)
def test_format_is_told_from_the_chat_template(template: str | None, kind: str | None) -> None:
    assert tool_format_of(template) == kind


def test_tool_choice_none_hides_the_tools() -> None:
    declared = [{"type": "function", "function": {"name": "f"}}]
    assert read_tools({"tools": declared, "tool_choice": "none"}, HERMES) is None
    found = read_tools({"tools": declared}, HERMES)
    assert found is not None
    assert found.names == {"f"}


def declared(*names: str) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in names]


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"f", "g"}), ({"type": "function", "function": {"name": "g"}}, {"g"})]
)
def test_forced_choice_narrows_the_tools_to_a_grammar_of_one_call(choice: Any, names: set[str]) -> None:
    pytest.importorskip("llguidance")
    found = read_tools({"tools": declared("f", "g"), "tool_choice": choice}, HERMES)
    assert found is not None
    assert found.forced
    assert found.names == names
    source.check(call_grammar(found))
    parser = ToolParser(found)
    assert parser.feed('{"name": "g", ') + parser.feed('"arguments": {"x": 1}}') == ""
    assert [(call.name, call.arguments) for call in parser.finish()[1]] == [("g", '{"x":1}')]


def test_forced_call_follows_the_definitions_within_each_functions_own_parameters() -> None:
    """As pydantic writes them for nested models; `#` is the parameters, and not the call that holds them."""
    pytest.importorskip("llguidance")
    tools = declared("f", "g")
    tools[0]["function"]["parameters"] = {
        "$defs": {"City": {"enum": ["Paris"]}},
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "next": {"$ref": "#"}},
        "required": ["city"],
    }
    found = read_tools({"tools": tools, "tool_choice": "required"}, HERMES)
    assert found is not None
    source.check(call_grammar(found))
    tools[1]["function"]["parameters"] = {"$ref": "#/$defs/City"}
    with pytest.raises(source.GrammarError, match="/\\$defs/City"):
        source.check(call_grammar(found))


@pytest.mark.parametrize(
    ("choice", "refused"),
    [("required", True), ({"type": "function", "function": {"name": "g"}}, True),
     ({"type": "function", "function": {"name": "f"}}, False), ("auto", False)],
)  # fmt: skip
async def test_forced_call_with_parameters_that_cannot_be_enforced_names_them(
    start_worker: StartWorker, choice: Any, refused: bool
) -> None:
    pytest.importorskip("llguidance")
    worker = await start_worker(tool_format="hermes")
    tools = declared("f", "g")
    messages = [{"role": "user", "content": "hello"}]
    for schema, text in (({"$ref": "#"}, "has no end"), ({"type": "objekt"}, "Invalid type")):
        tools[1]["function"]["parameters"] = schema
        status, answer = await worker.post("/v1/chat/completions", messages=messages, tools=tools, tool_choice=choice)
        assert status == (400 if refused else 200)
        if refused:
            assert answer["error"]["param"] == "tools[1].function.parameters"
            assert text in answer["error"]["message"]


CUT = [
    # (format, forced, names, text, content, [(name, the beginning of its arguments)])
    (HERMES, True, "fg", '{"name": "g", "arguments": {"x": 1, "y', "", [("g", '{"x": 1, "y')]),
    (HERMES, True, "fg", '{"name": "g", "argu', "", [("g", "")]),
    (HERMES, True, "fg", '{"name": "', "", []),
    (HERMES, True, "g", '{"name": "', "", [("g", "")]),
    (HERMES, True, "g", "", "", [("g", "")]),
    (HERMES, False, "fg", 'hm ' + ONE + '<tool_call>\n{"name": "g", "arguments": {"y": "<', "hm ",
     [("f", '{"x":1}'), ("g", '{"y": "<')]),
    (HERMES, False, "fg", '<tool_call>{"na', '<tool_call>{"na', []),
    (HERMES, False, "fg", "<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", []),
    (HERMES, False, "fg", "an answer <tool", "an answer <tool", []),
    (LLAMA, False, "fg", '{"name": "f", "parameters": {"x', "", [("f", '{"x')]),
    (LLAMA, False, "fg", '{"name": "f", "parameters": {}}; {"name": "g", "para', "", [("f", "{}"), ("g", "")]),
    (LLAMA, False, "fg", '{"name": "Ada", "born": 18', '{"name": "Ada", "born": 18', []),
    (LLAMA, False, "fg", '{"answer": 4', '{"answer": 4', []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "forced", "names", "text", "content", "calls"), CUT)
def test_call_that_was_cut_short_is_told_as_far_as_it_came(
    kind: str, forced: bool, names: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    """As OpenAI and vLLM do, so that callers see what was asked for, and by the finish reason that it is not all."""
    parser = ToolParser(Tools(declared(*names), frozenset(names), kind, forced=forced))
    before = parser.feed(text)
    rest, found = parser.finish(cut=True)
    assert before + rest == content
    assert [(call.name, call.arguments) for call in found] == calls


@pytest.mark.parametrize(("parallel", "count"), [(True, 2), (False, 1), (None, 2)])
def test_parallel_tool_calls_false_keeps_the_first(parallel: bool | None, count: int) -> None:
    found = read_tools({"tools": declared("f", "g"), "parallel_tool_calls": parallel}, HERMES)
    assert found is not None
    parser = ToolParser(found)
    parser.feed(ONE + TWO)
    assert [call.name for call in parser.finish()[1]] == ["f", "g"][:count]


def test_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must name a function of 'tools'"):
        read_tools({"tools": declared("f"), "tool_choice": {"type": "function", "function": {"name": "h"}}}, HERMES)
