"""State is kept without being asked for, and never in anybody's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.config.model import Config
from proxy.state.location import default_path, kept_somewhere


def config(**data: Any) -> Config:
    return Config.model_validate({"upstreams": ["http://a:1"], **data})


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/trimtab", "HOME": "/h"}, "/var/lib/trimtab/8080.db"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/trimtab/8080.db"),
        ({"HOME": "/h"}, "/h/.local/state/trimtab/8080.db"),
        ({"HOME": "h"}, None),
        ({}, None),
    ],
)
def test_the_file_lies_where_the_system_keeps_state(environ: dict[str, str], path: str | None) -> None:
    assert default_path(config(), environ) == (None if path is None else Path(path))


def test_proxies_on_other_ports_have_other_files_and_unknown_ports_none() -> None:
    home = {"HOME": "/h"}
    assert default_path(config(listen={"port": 9000}), home) == Path("/h/.local/state/trimtab/9000.db")
    assert default_path(config(), home, "up-") == Path("/h/.local/state/trimtab/up-8080.db")
    assert default_path(config(listen={"port": 0}), home) is None


def test_a_default_is_named_and_not_made(tmp_path: Path) -> None:
    found = kept_somewhere(config(), {"XDG_STATE_HOME": str(tmp_path)})
    assert found.state.path == str(tmp_path / "trimtab" / "8080.db")
    assert not Path(found.state.path).exists()


def test_what_was_said_counts(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for said in (config(state={"enabled": False}), config(state={"path": "mine.db"})):
        assert kept_somewhere(said, environ) is said
    assert list(tmp_path.iterdir()) == []
