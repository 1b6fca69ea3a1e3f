"""What a request and an answer have in common."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["HttpMessage"]


class HttpMessage:
    """Fields as they stood on the wire, in their order, and a body. Subclasses are dataclasses that have both."""

    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first value of a field, None when it is absent."""
        return next(iter(self.all(name)), None)

    def all(self, name: str) -> list[str]:
        """Return the values of a field in their order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)
