"""The command line: what is wrong is said in one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.arguments import parse_arguments


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "Tiny-1M.Q8_0.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    return str(path)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--port", "70000"], "argument --port: must be between 0 and 65535, but it is 70000"),
        (["--port", "web"], "argument --port: 'web' is not a whole number"),
        (["--max-num-seqs", "0"], "argument --max-num-seqs: must be at least 1, but it is 0"),
        (["--offload-blocks", "-1"], "argument --offload-blocks: must be at least 0, but it is -1"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "max_num_batched_tokens (32) must be at least"),
        (["--policy", "lifo"], "argument --policy: invalid choice: 'lifo'"),
        (["--policy", "sjf", "--policy-option", "alfa=2"], "policy 'sjf' has no option 'alfa'"),
        (["--policy-option", "alpha"], "argument --policy-option: 'alpha' is not NAME=VALUE"),
        (["--dtype", "int3"], "argument --dtype: invalid choice: 'int3'"),
        (["--grace-s", "-1"], "argument --grace-s: must be at least 0 seconds"),
        (["--grace-s", "soon"], "argument --grace-s: 'soon' is not a number of seconds"),
        (["--made-up", "1"], "unrecognized arguments: --made-up 1"),
        (["--max-num", "1"], "unrecognized arguments: --max-num 1"),
    ],
)
def test_wrong_flag_is_one_line_and_code_2(
    model: str, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(["--model", model, *flags])
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert text in err
    assert err.startswith("trimtab worker: error: ")
    assert err.count("\n") == 1


def test_a_path_that_is_no_model_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    for path in (text, tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit) as stopped:
            parse_arguments(["--model", str(path)])
        err = capsys.readouterr().err
        assert stopped.value.code == 2
        assert f"{path} is no model" in err
        assert err.count("\n") == 1


def test_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "--model" in capsys.readouterr().err


def test_flags_reach_the_engine(model: str) -> None:
    flags = ["--threads", "3", "--num-blocks", "40", "--block-size", "8", "--no-mix"]
    given = parse_arguments(["--model", model, *flags, "--policy", "sjf", "--policy-option", "alpha=2.5"])
    engine = given.engine
    assert (engine.threads, engine.num_blocks, engine.block_size) == (3, 40, 8)
    assert (engine.policy, engine.mix, engine.prefix_cache) == ("sjf", False, True)
    assert engine.policy_options == {"alpha": 2.5}
    assert (given.host, given.port) == ("127.0.0.1", 8000)


def test_names_come_from_the_file_unless_given(model: str) -> None:
    assert parse_arguments(["--model", model]).names == ("Tiny-1M",)
    assert parse_arguments(["--model", model, "--served-model-name", "a", "b"]).names == ("a", "b")


def test_api_key_comes_from_the_environment_too(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_WORKER_API_KEY", "sesame")
    assert parse_arguments(["--model", model]).api_key == "sesame"
    assert parse_arguments(["--model", model, "--api-key", "other"]).api_key == "other"


def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(["--help"])
    assert stopped.value.code == 0
    assert "--max-num-batched-tokens" in capsys.readouterr().out


def test_a_chat_template_is_read_and_checked_before_anything_is_loaded(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert parse_arguments(["--model", model, "--chat-template", str(file)]).chat_template == file.read_text()
    assert parse_arguments(["--model", model]).chat_template is None
    file.write_text("{% for %}")
    for path, text in ((file, "chat.jinja: chat template, line 1"), (tmp_path / "none", "none cannot be read")):
        with pytest.raises(SystemExit) as stopped:
            parse_arguments(["--model", model, "--chat-template", str(path)])
        assert stopped.value.code == 2
        assert text in capsys.readouterr().err


def test_the_offload_budget_reaches_the_engine(model: str) -> None:
    assert parse_arguments(["--model", model]).engine.offload_blocks == 0
    assert parse_arguments(["--model", model, "--offload-blocks", "9"]).engine.offload_blocks == 9
