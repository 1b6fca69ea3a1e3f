"""Chat templates: Jinja from a checkpoint, which is untrusted input, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from backend.models.errors import ModelError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """One template, compiled at first use. Renders as the templates' authors tested them, with transformers."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def _template(self) -> Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from None

    def check(self) -> None:
        """Compile the template now. Raises ModelError, with the line, when it is not valid Jinja."""
        _ = self._template

    def render(self, scope: Mapping[str, Any]) -> str:
        """The text for `scope`, which holds messages, tools, add_generation_prompt and the special tokens.

        Raises:
            ModelError: the template refused its input, with the template's own message.
        """
        from jinja2 import TemplateError

        try:
            return self._template.render(scope)
        except ModelError:
            raise
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise ModelError(f"chat template: {error}") from None


def _environment() -> Environment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %}...{% endgeneration %} marks the model's own text; here it is only passed through."""

        tags = {"generation"}  # noqa: RUF012  (jinja's own declaration)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """Replace the tag by its body."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON; Jinja's own filter would escape HTML."""
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
