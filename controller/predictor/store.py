"""The predictor's state as a file: written whole or not at all, and refused when it is not sound."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["load_state", "save_state"]


def save_state(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` to `path` so that a crash at any moment leaves the old file or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(state, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any] | None:
    """Read what `save_state` wrote; None when there is no file or it is no state. Raises OSError otherwise."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return state if isinstance(state, dict) else None
