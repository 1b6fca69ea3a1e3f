"""What docs/conformance.md calls proven has a test of that name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`" in line]
NAMED = re.compile(r"`((?:C|tests)/[\w/]+\.py)::(\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    source = (ROOT / path.replace("C/", "tests/conformance/", 1)).read_text()
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE))


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(PAGE))))
def test_every_proof_exists(path: str, name: str) -> None:
    assert name in names_in(path), f"{path} has no {name}"


@pytest.mark.parametrize("row", ROWS)
def test_every_promise_has_a_proof(row: str) -> None:
    assert len(row.split("|")) == 5
    proofs = row.split("|")[3]
    assert NAMED.findall(proofs)
    assert not re.sub(NAMED, "", proofs).strip(" ,"), "something that is no test is called a proof"
