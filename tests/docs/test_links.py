"""Whatever a page points at is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, Page, every_page

every = pytest.mark.parametrize("page", every_page(), ids=lambda page: page.name)
FILE = re.compile(
    r"(?:(?:backend|benchmarks|controller|deploy|docs|grafana|policies|proxy|tests)/[\w./-]*\w/?"
    r"|(?:pyproject\.toml|constraints\.txt|Makefile|README\.md|CHANGELOG\.md))"
)


@every
def test_every_link_leads_somewhere(page: Page) -> None:
    broken = []
    for target, line in page.links():
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, fragment = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(f"{page.name}:{line}: {target}: no such file")
        elif fragment and file.suffix == ".md" and fragment not in Page(file).anchors():
            broken.append(f"{page.name}:{line}: {target}: no such heading")
    assert broken == []


@every
def test_every_file_named_exists(page: Page) -> None:
    missing = [
        f"{page.name}:{line}: {text}"
        for text, line in page.inline()
        if FILE.fullmatch(text) and not (ROOT / text).exists() and not _made(text)
    ]
    assert missing == []


def _made(text: str) -> bool:
    """Whether it is something that a command, or the reader, writes."""
    return text.startswith("benchmarks/results") or "yours" in text


@every
def test_every_picture_says_what_it_shows(page: Page) -> None:
    assert re.findall(r"!\[\s*\]\(", page.text) == []


def test_every_page_can_be_reached_from_the_front_page_or_the_index() -> None:
    known = {page.path: page for page in every_page()}
    found, todo = {ROOT / "CHANGELOG.md"}, [ROOT / "README.md", ROOT / "docs" / "README.md"]
    while todo:
        path = todo.pop()
        if path in found or path not in known:
            continue
        found.add(path)
        for target, _ in known[path].links():
            todo.append((path.parent / target.partition("#")[0]).resolve())
    assert sorted(page.name for path, page in known.items() if path not in found) == []
