"""Messages reach the chat template in the shape that templates are written for."""

from __future__ import annotations

from typing import Any

import pytest

from backend.api.errors import InvalidRequest
from backend.api.messages import read_messages
from backend.chat_template import ChatTemplate

TEMPLATE = """
{%- if tools %}TOOLS {{ tools | tojson }}
{% endif %}
{%- for message in messages %}{{ message.role }}:
{%- if message.tool_calls %}{% for call in message.tool_calls %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}{% endif %} {{ message.content }}
{% endfor %}"""


def test_a_conversation_with_tool_calls_renders_as_the_model_wrote_it() -> None:
    """Arguments come as JSON text and go out as JSON, not as a quoted string of JSON."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
    messages = read_messages(
        [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]
    )
    text = ChatTemplate(TEMPLATE).render({"messages": messages, "tools": None})
    assert text == (
        "user: weather?\n"
        'assistant:<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call> \n'
        "tool: sunny\n"
    )
    assert messages[2]["tool_call_id"] == "call_1"


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", "5", 5, None])
def test_arguments_that_are_no_object_are_named(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequest) as refused:
        read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert refused.value.param == "messages[0].tool_calls[0].function.arguments"


def test_empty_arguments_are_an_empty_object() -> None:
    call = {"function": {"name": "f", "arguments": ""}}
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}
