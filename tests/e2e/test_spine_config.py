"""A wrong configuration: exit code 2, one clear message with the fix, and nothing was started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.spine_process import run_to_its_end

UPSTREAM = "upstreams: [http://127.0.0.1:9]\n"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("slo: {ttft_mss: 5}\n", ("slo.ttft_mss", "ttft_ms", "trimtab.yaml:2")),
        ("setpoints: {window_ms: -3}\n", ("setpoints.window_ms", "-3", "0", "60000", "trimtab.yaml:2")),
        ("listen: {port: 70000}\n", ("listen.port", "70000", "65535")),
        ("law: pidd\n", ("law", "pidd", "aimd")),
        ("policy: prioritee\n", ("policy", "prioritee", "priority")),
        ("wire: openapi\n", ("wire", "openapi", "openai")),
        ("upstreams: ['ftp://nowhere']\n", ("upstreams[0].url", "http://", "trimtab.yaml:1")),
        ("slo: [\n", ("trimtab.yaml",)),
    ],
    ids=lambda value: value.strip() if isinstance(value, str) else "",
)
def test_a_wrong_file_is_refused_with_where_what_and_the_fix(
    tmp_path: Path, extra: str, words: tuple[str, ...]
) -> None:
    text = extra if extra.startswith("upstreams") else UPSTREAM + extra
    (tmp_path / "trimtab.yaml").write_text(text)
    code, out, err = run_to_its_end(tmp_path, "serve", "-c", "trimtab.yaml", "--admin-port", "0")
    assert (code, out) == (2, "")
    assert err.startswith("trimtab: trimtab.yaml")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


def test_an_unknown_profile_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "trimtab.yaml").write_text("upstreams:\n- {url: 'http://127.0.0.1:9', profile: vlm}\n")
    code, out, err = run_to_its_end(tmp_path, "serve", "--port", "0", "--admin-port", "0")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    for word in ("profile", "vlm", "vllm", "trimtab.yaml:2"):
        assert word in err


def test_a_wrong_environment_variable_is_named(tmp_path: Path) -> None:
    code, _, err = run_to_its_end(
        tmp_path, "serve", "--upstream", "http://127.0.0.1:9", TRIMTAB_SETPOINTS__WINDOW_MS="-1"
    )
    assert (code, err.count("\n")) == (2, 1), err
    assert "TRIMTAB_SETPOINTS__WINDOW_MS" in err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    code, _, err = run_to_its_end(tmp_path, "serve", "-c", "missing.yaml")
    assert (code, err.count("\n")) == (2, 1), err
    assert "missing.yaml" in err


@pytest.mark.parametrize("command", [("serve", "--upstream", "http://127.0.0.1:9"), ("up",)], ids=["serve", "up"])
@pytest.mark.parametrize(("flag", "other"), [("--port", "--admin-port"), ("--admin-port", "--port")])
def test_a_port_in_use_is_refused_before_anything_starts(
    tmp_path: Path, command: tuple[str, ...], flag: str, other: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run_to_its_end(tmp_path, *command, flag, port, other, "0")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    for word in (f"127.0.0.1:{port}", "in use", flag, *(['make run ARGS="--port'] if command == ("up",) else [])):
        assert word in err


@pytest.mark.parametrize("command", ["up", "worker"])
def test_a_path_that_is_no_model_is_one_message_that_names_it(tmp_path: Path, command: str) -> None:
    model = tmp_path / "nothing-here"
    code, out, err = run_to_its_end(tmp_path, command, "--model", str(model), "--port", "0")
    assert (code, out) == (2, "")
    assert str(model) in err
    assert err.count("\n") == 1, err
