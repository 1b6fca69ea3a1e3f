"""No key is decoration: each is read by some part of the proxy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.config.base import Section
from proxy.config.describe import section_of
from proxy.config.model import Config

PROXY = Path(__file__).resolve().parents[3] / "proxy"


def sections(root: type[Section] = Config) -> set[type[Section]]:
    found = {root}
    for field in root.model_fields.values():
        inner = section_of(field.annotation)
        if inner is not None:
            found |= sections(inner)
    return found


SOURCE = "\n".join(
    path.read_text()
    for path in PROXY.rglob("*.py")
    if path.name not in ("model.py", "describe.py", "schemas.py", "show.py")
    or path.parent.name not in ("config", "admin")
)
KEYS = sorted({(section.__name__, key) for section in sections() for key in section.model_fields})


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_is_read_somewhere(section: str, key: str) -> None:
    # Ranges are read through getattr, by the name of the knob.
    assert re.search(rf"\.{key}\b|\"{key}\"", SOURCE), f"{section}.{key} is documented, and nothing reads it"
