"""The pages on servers: every configuration can be used as it stands. Links, commands and names: see beside this."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.config.load import check
from proxy.config.profile import load_profile, profile_names
from proxy.config.source import read_text

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "servers").glob("*.md"))
SERVERS = [page for page in PAGES if page.stem != "README"]
each_server = pytest.mark.parametrize("page", SERVERS, ids=lambda page: page.stem)


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^ *```{kind}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)


@each_server
def test_every_configuration_passes_the_check_that_the_page_shows(page: Path, tmp_path: Path) -> None:
    configurations = blocks(page, "yaml")
    assert configurations
    for number, block in enumerate(configurations):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        done = CliRunner().invoke(main, ["config", "check", "-c", str(file)], env={"TRIMTAB_CONFIG": ""})
        assert done.exit_code == 0, done.output


@each_server
def test_the_first_configuration_names_the_profile_of_its_page(page: Path) -> None:
    assert page.stem in profile_names()
    pool = check(read_text(blocks(page, "yaml")[0], page.name, {})).pools[0]
    assert {upstream.profile for upstream in pool.upstreams} == {page.stem}
    assert any(getattr(pool.slo, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms"))


@each_server
def test_a_page_says_how_to_start_which_slo_and_what_to_watch(page: Path) -> None:
    text = page.read_text()
    assert re.search("which slo first|first slo", text, re.IGNORECASE)
    assert re.search(r"\bwatch\b", text, re.IGNORECASE)
    assert "trimtab serve -c trimtab.yaml" in text


@each_server
def test_the_servers_metrics_that_say_how_busy_it_is_are_those_of_its_profile(page: Path) -> None:
    metrics = load_profile(page.stem).metrics
    waiting = () if metrics is None else metrics.waiting
    text = page.read_text()
    plain = [series.name for series in waiting if not series.labels]
    assert not plain or page.stem == "triton" or any(name in text for name in plain)
