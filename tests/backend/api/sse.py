"""Reading server-sent events in tests."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["events"]


def events(text: str) -> list[Any]:
    """Return the payloads of an event stream; `[DONE]` stays a string."""
    assert text.endswith("\n\n")
    payloads = [block.removeprefix("data: ") for block in text.split("\n\n")[:-1]]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]
