"""Packages that take seconds to import, imported when a test first uses them.

Every process that runs tests imports every test file, whichever tests it will be given: what all files import is paid
for in each. `openai = late("openai")` stands for `import openai`.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["late"]


class late:  # noqa: N801 - read as a statement
    """A module that is imported with the first look at what is in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
