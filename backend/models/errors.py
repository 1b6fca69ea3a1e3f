"""The one error a model can raise while it is found, read or built."""

from __future__ import annotations

__all__ = ["ModelError"]


class ModelError(ValueError):
    """A model cannot be served; the message is one line that names the file, key or tensor."""
