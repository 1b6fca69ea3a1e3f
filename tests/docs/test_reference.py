"""The reference pages say what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from docs.generate import PAGES
from proxy.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_code_makes(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), f"run docs/generate.py: {name}"


def test_every_environment_variable_shown_works(tmp_path: Path) -> None:
    page = (DOCS / "configuration.md").read_text()
    shown = dict(re.findall(r"`(TRIMTAB_[A-Z_]+)=([^`]+)`", page))
    assert shown
    file = tmp_path / "trimtab.yaml"
    file.write_text(yaml.safe_dump({"pools": [{"name": "chat", "upstreams": ["http://a:1"]}]}))
    for variable, value in shown.items():
        done = CliRunner().invoke(main, ["config", "check", "-c", str(file)], env={variable: shlex.split(value)[0]})
        assert done.exit_code == 0, f"{variable}: {done.output}"


def test_every_field_of_the_admin_api_is_described() -> None:
    page = (DOCS / "admin-api.md").read_text()
    assert not re.findall(r"^\| `\w+` \|  \|$", page, re.MULTILINE)


def test_every_ctl_command_shown_exists() -> None:
    page = (DOCS / "admin-api.md").read_text()
    shown = re.findall(r"^trimtab ctl (\S+)", page, re.MULTILINE)
    listed = re.search(r"for the shell: (.*?);", page, re.DOTALL)
    assert shown
    assert listed
    names = {*shown, *(name.split()[0] for name in re.findall(r"`([^`]+)`", listed.group(1)))}
    known = CliRunner().invoke(main, ["ctl", "--help"]).stdout
    assert all(re.search(rf"^  {re.escape(name)}\s", known, re.MULTILINE) for name in names)
