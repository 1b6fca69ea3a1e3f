"""Keys and metrics that a page names are keys and metrics that exist, and example configurations load."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.describe import find
from proxy.config.errors import ConfigError
from proxy.config.load import check
from proxy.config.model import Config, PoolConfig
from proxy.config.source import read_text
from tests.docs.pages import Block, Page, every_page
from tests.grafana.test_dashboards import families
from tests.support.certificates import Authority, authority

__all__ = ["authority"]

every = pytest.mark.parametrize("page", every_page(), ids=lambda page: page.name)
SECTIONS = {*Config.model_fields, *PoolConfig.model_fields}
METRIC = re.compile(r"trimtab_[a-z0-9_]+(?:\{[^}]*\})?")
OTHER_YAML = ("scrape_configs", "groups", "services", "apiVersion", "annotations", "expr")


@pytest.fixture(scope="session")
def certificates(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that examples name in /etc/trimtab."""
    folder = tmp_path_factory.mktemp("etc")
    for stem in ("tls", "client"):
        pair = authority.issue(stem)
        shutil.copy(pair.cert, folder / f"{stem}.crt")
        shutil.copy(pair.key, folder / f"{stem}.key")
    shutil.copy(authority.cert, folder / "inference-ca.crt")
    shutil.copy(authority.cert, folder / "clients-ca.crt")
    return folder


@every
def test_every_configuration_shown_loads(page: Page, certificates: Path) -> None:
    faults = []
    for block in page.blocks():
        if block.language in ("yaml", "yml") and not _foreign(block):
            variables = dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "t" * 20)
            text = _completed(block.text).replace("/etc/trimtab/", f"{certificates}/")
            try:
                check(read_text(text, page.name, variables))
            except ConfigError as error:
                faults.append(f"{page.name}:{block.line}: {error}")
    assert faults == []


def _foreign(block: Block) -> bool:
    """Whether it is somebody else's YAML: Prometheus, Compose, Kubernetes."""
    data = yaml.safe_load(re.sub(r"\$\{[^}]*\}", "x", block.text))
    assert isinstance(data, dict), f"line {block.line}: not a mapping"
    return any(key in data for key in OTHER_YAML)


def _completed(text: str) -> str:
    """A fragment that says nothing of upstreams gets one, so that the rest of it can be judged."""
    data: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{[^}]*\}", "x", text))
    if "upstreams" in data or "pools" in data:
        return text
    return text + "\nupstreams: [http://127.0.0.1:8000]\n"


@every
def test_every_json_body_shown_is_json(page: Page) -> None:
    for command in page.commands():
        for flag, body in zip(command.words, command.words[1:], strict=False):
            if flag in ("-d", "--data") and body.startswith(("{", "[")):
                json.loads(body)


@every
def test_every_key_named_exists(page: Page) -> None:
    faults = []
    for text, line in page.inline():
        if not re.fullmatch(r"[a-z_]+(?:\[\])?(?:\.[a-zA-Z_]+(?:\[\])?)+(?:: .*)?", text):
            continue
        path = _path(text.partition(":")[0])
        if str(path[0]) in SECTIONS and not any(find(start) for start in (path, ("pools", 0, *path))):
            faults.append(f"{page.name}:{line}: {text}")
    assert faults == []


def _path(dotted: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    for part in dotted.split("."):
        name, many, _ = part.partition("[")
        parts.append(name)
        if many or (name == "upstreams" and not dotted.endswith(name)):
            parts.append(0)
    return tuple(parts)


@every
def test_every_metric_named_exists(page: Page) -> None:
    known = set(families())
    known |= {name.removesuffix("_total") for name in known} | {name.removesuffix("_bucket") for name in known}
    named = {
        (match[0].partition("{")[0], line)
        for text, line in page.inline()
        for match in METRIC.finditer(text)
        if not text.startswith(("trimtab_worker_*", "trimtab_*"))
    }
    missing = [f"{page.name}:{line}: {name}" for name, line in sorted(named) if name not in known]
    assert [one for one in missing if not one.endswith("_")] == []
