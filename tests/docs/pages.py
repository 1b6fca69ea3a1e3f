"""The pages as a reader meets them: their links, headings, blocks and the commands they tell one to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Block", "Command", "Page", "every_page"]

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^( *)(```+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_SHELL = ("", "console", "sh", "bash", "shell")
_STARTS = ("trimtab", "python", "make", "curl", "promtool", "systemctl", "docker", "podman")


class Block(NamedTuple):
    """A fenced block and the line its content starts at."""

    language: str
    text: str
    line: int


class Command(NamedTuple):
    """One command as shown, `words` as a shell would split it; placeholders are still in it."""

    text: str
    words: tuple[str, ...]
    line: int
    in_block: bool


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()

    @property
    def name(self) -> str:
        """The path from the root of the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """The text with fenced blocks blanked, line for line."""
        return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), self.text)

    def blocks(self) -> list[Block]:
        """Return every fenced block."""
        return [Block(m[3], m[4], self.line(m.start(4))) for m in _FENCE.finditer(self.text)]

    def line(self, offset: int) -> int:
        """Return the line of a place in the text."""
        return self.text.count("\n", 0, offset) + 1

    def links(self) -> list[tuple[str, int]]:
        """Return (target, line) of every link and picture outside of code."""
        text = _INLINE.sub(lambda match: "x" * len(match[0]), self.prose)
        return [(m[2], text.count("\n", 0, m.start()) + 1) for m in _LINK.finditer(text)]

    def anchors(self) -> set[str]:
        """Return the fragments that GitHub gives to the headings."""
        seen: dict[str, int] = {}
        found = set()
        for match in _HEADING.finditer(self.prose):
            slug = _slug(match[1])
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
        return found

    def inline(self) -> list[tuple[str, int]]:
        """Return (text, line) of everything in single backticks, a line break in it read as a space."""
        prose = self.prose
        return [(" ".join(m[1].split()), prose.count("\n", 0, m.start()) + 1) for m in _INLINE.finditer(prose)]

    def commands(self) -> list[Command]:
        """Return every command shown, in blocks (fenced or indented) and in running text."""
        found: list[Command] = []
        for block in self.blocks():
            if block.language in _SHELL:
                found += _commands(block.text, block.line, prompts=block.language == "console")
        indented = re.compile(r"(?:^    \S.*\n(?:    .*\n)*)", re.MULTILINE)
        for match in indented.finditer(self.prose):
            found += _commands(re.sub("^    ", "", match[0], flags=re.MULTILINE),
                               self.prose.count("\n", 0, match.start()) + 1, prompts=False)  # fmt: skip
        for text, line in self.inline():
            words = _words(text)
            if len(words) > 1 and words[0] in _STARTS and "…" not in text:
                found.append(Command(text, words, line, in_block=False))
        return found


def _slug(heading: str) -> str:
    """Return the fragment of a heading as GitHub makes it."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-")


def _commands(text: str, line: int, *, prompts: bool) -> Iterator[Command]:
    """Yield the commands of a block, those that go on behind a backslash or an open quote put together.

    Where prompts are shown, what has none is output.
    """
    lines = text.splitlines()
    prompts = prompts and any(one.startswith("$ ") for one in lines)
    index = 0
    while index < len(lines):
        start, shown = index, lines[index]
        index += 1
        if prompts and not shown.startswith("$ "):
            continue
        whole = shown.removeprefix("$ ")
        if not whole.strip().startswith(_STARTS):
            continue
        while index < len(lines) and (whole.endswith("\\") or not _closed(whole)):
            whole = whole.removesuffix("\\") + ("" if whole.endswith("\\") else "\n") + lines[index]
            index += 1
        words = _words(whole)
        if words and words[0] in _STARTS:
            yield Command(whole.strip(), words, line + start, in_block=True)


def _closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _words(text: str) -> tuple[str, ...]:
    """Split as a shell does, up to a pipe or a redirection; () when it is no shell line. Paths to our programs go."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return ()
    ends = [index for index, word in enumerate(words) if word in ("|", ">", ">>", "&", "&&", "||", ";", "<")]
    words = words[: ends[0]] if ends else words
    while words and re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", words[0]):
        words = words[1:]
    if words and (ours := re.fullmatch(r"\S*bin/(trimtab|python)", words[0])):
        words[0] = ours[1]
    return tuple(words)


@cache
def every_page() -> tuple[Page, ...]:
    """Return the front page, the change log and everything under docs/."""
    return tuple(
        Page(path)
        for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
        if path.is_file()
    )
