"""Every command that a page shows is one that exists, with options that it takes."""

from __future__ import annotations

import argparse
import importlib.util
import re
from functools import cache
from pathlib import Path

import click
import pytest

from backend.arguments import parse_arguments
from controller.simulator.cli import main as simulate
from proxy.admin.openapi import OPERATIONS
from proxy.cli import main
from proxy.wire.registry import wire_names
from tests.docs.pages import ROOT, Command, Page, every_page

every = pytest.mark.parametrize("page", every_page(), ids=lambda page: page.name)
PLACEHOLDER = re.compile(r"^[A-Z][A-Z0-9_]*$")
STANDS_FOR = {"FROM:TO:FACTOR": "1:2:2", "FROM:TO": "1:2", "LAW": "aimd", "KEY=VALUE": "slo.ttft_ms=5"}
NUMERIC = {"N", "COUNT", "SECONDS", "DECISION", "ID"}


def filled(word: str) -> str:
    """Return a word that a reader would put in the place of a placeholder."""
    if word in STANDS_FOR:
        return STANDS_FOR[word]
    if word in NUMERIC:
        return "7"
    return word.lower() if PLACEHOLDER.match(word) else word


@every
def test_every_trimtab_command_is_understood(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    faults = []
    for command in page.commands():
        if command.words[0] != "trimtab" or command.words[1:] == ("...",):
            continue
        try:
            understand([filled(word) for word in command.words[1:]])
        except (click.ClickException, argparse.ArgumentError, SystemExit) as error:
            if isinstance(error, click.MissingParameter) and not command.in_block:
                continue  # named in running text, not to be typed as it stands
            faults.append(f"{page.name}:{command.line}: {command.text}: {_reason(error)}")
    assert faults == []


def _reason(error: BaseException) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def understand(words: list[str]) -> None:
    """Parse the words as `trimtab` would, without doing anything. A bare group is a name, not a command."""
    if words[:1] == ["worker"]:
        parse_worker(words[1:])
        return
    if words[:1] == ["simulate"]:
        parse_simulate(words[1:])
        return
    command: click.Command = main
    context: click.Context | None = None
    while True:
        if isinstance(command, click.Group) and not words:
            return
        context = command.make_context(command.name, words, parent=context)
        if not isinstance(command, click.Group):
            return
        _, following, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert following is not None
        command = following


def parse_worker(words: list[str]) -> None:
    if words:
        if "--model" not in words:
            words = [*words, "--model", "demo"]
        index = words.index("--model") + 1
        parse_arguments([*words[:index], "demo", *words[index + 1 :]])


def parse_simulate(words: list[str]) -> None:
    """The simulator's own parser, asked to stop before it runs."""
    if not words:
        return
    with pytest.raises(SystemExit) as ended:
        simulate([*words, "--help"])
    if ended.value.code:
        raise SystemExit(f"trimtab simulate does not take {words}")


@cache
def source_of(module: str) -> str:
    """Return the text of a module, of a package all of it: options are declared somewhere in there."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin)
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    return "\n".join(one.read_text() for one in files)


@every
def test_every_python_module_is_there_and_takes_its_options(page: Page) -> None:
    faults = []
    for command in page.commands():
        if command.words[:2] not in (("python", "-m"), ("python3", "-m")):
            faults += _script(page, command)
            continue
        module, options = command.words[2], [word for word in command.words[3:] if word.startswith("--")]
        if not module.startswith(("backend", "benchmarks", "controller", "proxy", "tests")):
            continue
        if importlib.util.find_spec(module) is None:
            faults.append(f"{page.name}:{command.line}: no module {module}")
            continue
        text = source_of(module)
        faults += [f"{page.name}:{command.line}: {module} has no {name}" for name in _unknown(options, text)]
    assert faults == []


def _script(page: Page, command: Command) -> list[str]:
    if command.words[0] != "python" or len(command.words) < 2 or not command.words[1].endswith(".py"):
        return []
    return [] if (ROOT / command.words[1]).is_file() else [f"{page.name}:{command.line}: no {command.words[1]}"]


def _unknown(options: list[str], text: str) -> list[str]:
    names = [option.partition("=")[0] for option in options]
    return [name for name in names if f'"{name}"' not in text]


@every
def test_every_make_target_exists(page: Page) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    benches = {f"bench-{name}" for name in ("proxy", "control", "predictor", "engine", "spine")}
    named = [
        (command.line, word)
        for command in page.commands()
        if command.words[0] == "make"
        for word in command.words[1:]
        if "=" not in word and not word.startswith("-")
    ]
    assert [f"{page.name}:{line}: make {word}" for line, word in named if word not in targets | benches] == []


@every
def test_every_admin_path_shown_exists(page: Page) -> None:
    known = [(one.method, re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one.path))) for one in OPERATIONS]
    faults = []
    for shown, line in _admin_calls(page):
        method, _, path = shown.rpartition(" ")
        path = path.partition("?")[0].rstrip("/")
        if path in ("/admin", "/admin/v1"):
            continue
        if not any(re.fullmatch(pattern, path) and method in ("", of) for of, pattern in known):
            faults.append(f"{page.name}:{line}: {shown}")
    assert faults == []


def _admin_calls(page: Page) -> list[tuple[str, int]]:
    """Return (METHOD path, line), the method left out where none is said."""
    found = []
    for text, line in page.inline():
        if match := re.fullmatch(r"(?:(GET|PUT|POST|PATCH|DELETE) )?(/admin/\S*)", text):
            found.append((f"{match[1] or ''} {match[2]}", line))
    for command in page.commands():
        if command.words[0] == "curl":
            method = "GET"
            for flag, value in zip(command.words, command.words[1:], strict=False):
                if flag in ("-X", "--request"):
                    method = value
            if method == "GET" and {"-d", "--data"} & set(command.words):
                method = "POST"
            for word in command.words:
                if match := re.search(r"https?://[^/]+(/admin/\S*)", word):
                    found.append((f"{method} {match[1]}", command.line))
    return found


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    file = ROOT / "docs" / "generate.py"
    page = Page(file)
    page.text = "```\ntrimtab serve --nonsense\ntrimtab ctl dance\nmake sense\n```\n`GET /admin/v1/nothing`\n"
    words = [command.words for command in page.commands()]
    assert words == [("trimtab", "serve", "--nonsense"), ("trimtab", "ctl", "dance"), ("make", "sense")]
    for bad in words[:2]:
        with pytest.raises(click.ClickException):
            understand(list(bad[1:]))
    assert _admin_calls(page) == [("GET /admin/v1/nothing", 6)]
    assert "auto" in wire_names()
