"""Which build of torch `make` installs: nobody fetches CUDA for nothing, and nobody's own choice is overruled."""

from __future__ import annotations

import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from deploy import torch_build
from tests.docs.pages import ROOT

SCRIPT = ROOT / "deploy" / "torch_build.py"
NAME = "torch-2.13.0+cpu-py3-none-any.whl"


class TestDecision:
    @pytest.mark.parametrize(
        ("environ", "platform", "driver", "sources", "what", "told"),
        [
            pytest.param({}, "linux", False, [], "cpu", "190 MB", id="no-driver"),
            pytest.param({}, "linux", True, [], "pip", "2.8 GB", id="driver"),
            pytest.param({}, "darwin", False, [], "pip", "110 MB", id="mac"),
            pytest.param({}, "linux", False, ["find-links"], "pip", "find-links", id="own-configuration"),
            pytest.param({}, "linux", True, ["index-url"], "pip", "index-url", id="own-configuration-and-driver"),
            pytest.param({"TORCH_INDEX": "none"}, "linux", False, [], "pip", "2.8 GB", id="none"),
            pytest.param({"TORCH_INDEX": ""}, "linux", False, [], "pip", "2.8 GB", id="empty"),
            pytest.param({"TORCH_INDEX": "https://a/cpu"}, "linux", True, [], "index", "190 MB", id="index"),
            pytest.param(
                {"TORCH_INDEX": "/srv/x"}, "darwin", False, ["index-url"], "index", "TORCH_INDEX", id="first"
            ),
        ],
    )
    def test_it_is_made_and_told_with_the_size(
        self, environ: dict[str, str], platform: str, driver: bool, sources: list[str], what: str, told: str
    ) -> None:
        decided, line = torch_build.decide(environ, platform, driver, sources)
        assert decided == what
        assert told in line
        assert "B" in line.replace("CPU", ""), "a size is told"

    def test_a_driver_is_seen_by_its_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert not torch_build.has_driver([tmp_path / "version"])
        (tmp_path / "version").touch()
        assert torch_build.has_driver([tmp_path / "version"])

    @pytest.mark.parametrize(
        ("listing", "keys"),
        [
            ("", []),
            (":env:.cert='/etc/ca.crt'\n:env:.default-timeout='180'\nglobal.proxy='http://p:1'", []),
            ("global.extra-index-url='https://mirror/simple'", ["extra-index-url"]),
            (
                ":env:.find-links='/w'\nglobal.find-links='/v'\ninstall.constraint='c.txt'",
                ["find-links", "constraint"],
            ),
            (":env:.find-links=''\n:env:.index-url=' '", []),
        ],
    )
    def test_a_pip_configuration_counts_where_it_says_where_packages_come_from(
        self, listing: str, keys: list[str]
    ) -> None:
        assert torch_build.configured_sources(listing) == keys


class Environment:
    """A virtual environment of a user without any configuration, and what the two steps say and do in it."""

    def __init__(self, folder: Path, fresh: Path) -> None:
        self.folder = folder
        shutil.copytree(fresh, folder / "env", symlinks=True)
        self.python = folder / "env" / "bin" / "python"
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text("torch==2.13.0\n")

    def step(self, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "PIP_CONFIG_FILE": "/dev/null", **environ}
        return subprocess.run(
            [self.python, SCRIPT, *words], cwd=self.folder, env=given, capture_output=True, text=True, check=False
        )

    def fetch(self, uv: Path | str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.step("fetch", "--uv", str(uv), "--constraints", str(self.constraints), **environ)

    def installed(self) -> str:
        text = "import importlib.metadata as m; print(*(d.version for d in m.distributions(name='torch')))"
        return subprocess.run([self.python, "-c", text], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment to copy: putting pip into one takes seconds."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def environment(tmp_path: Path, fresh: Path) -> Environment:
    return Environment(tmp_path, fresh)


def publish(folder: Path) -> Path:
    """Make a package index in a folder, with a torch in it that has nothing but a version."""
    page = folder / "index" / "torch"
    page.mkdir(parents=True)
    info = "torch-2.13.0+cpu.dist-info"
    with zipfile.ZipFile(page / NAME, "w") as file:
        file.writestr("torch/__init__.py", "")
        file.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\nRequires-Dist: absent\n"
        )
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"torch/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (page / "index.html").write_text(f'<html><body><a href="{NAME.replace("+", "%2B")}">{NAME}</a></body></html>')
    return folder / "index"


def fake_uv(folder: Path, script: str) -> Path:
    """Put a program in uv's place that writes down how it was called."""
    file = folder / "uv"
    file.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\necho "$SSL_CERT_FILE" >> {folder}/certificates\n{script}\n'
    )
    file.chmod(0o755)
    return file


class TestIndex:
    def test_torch_alone_is_taken_from_the_index_that_is_named(self, environment: Environment) -> None:
        index = publish(environment.folder)
        chosen = environment.step("choose", TORCH_INDEX=str(index))
        assert chosen.returncode == 0
        assert "TORCH_INDEX" in chosen.stdout
        done = environment.fetch("/nowhere/uv", TORCH_INDEX=str(index))
        assert done.returncode == 0, done.stdout + done.stderr
        assert environment.installed() == "2.13.0+cpu"
        assert environment.step("choose", TORCH_INDEX=str(index)).returncode == 1, "there is one now"

    def test_an_index_that_has_none_is_an_error_and_nothing_else_is_taken(self, environment: Environment) -> None:
        done = environment.fetch("/nowhere/uv", TORCH_INDEX=(environment.folder / "empty").as_uri())
        assert done.returncode == 2
        assert "TORCH_INDEX=none" in done.stderr
        assert environment.installed() == ""


class TestFrameworksIndex:
    def calls(self, environment: Environment) -> list[str]:
        return (environment.folder / "calls").read_text().splitlines()

    def test_it_is_tried_without_a_download_before_anything_is_fetched(self, environment: Environment) -> None:
        done = environment.fetch(fake_uv(environment.folder, "exit 0"), PIP_CERT="/etc/ours.crt")
        probe, real = self.calls(environment)
        assert done.returncode == 0
        assert probe == f"{real} --dry-run"
        assert "--torch-backend cpu --no-deps" in real
        assert (environment.folder / "certificates").read_text() == "/etc/ours.crt\n/etc/ours.crt\n"

    def test_where_it_cannot_be_reached_the_size_of_the_other_build_is_told(self, environment: Environment) -> None:
        done = environment.fetch(fake_uv(environment.folder, "echo 'cause: no such host' >&2; exit 2"))
        assert done.returncode == 0, "pip goes on with the registry's build"
        assert len(self.calls(environment)) == 1
        assert "cause: no such host" in done.stdout
        assert torch_build.DEFAULT_BUILD in done.stdout

    def test_an_index_that_never_answers_is_given_up(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch_build, "PROBE_S", 0.2)
        reason = torch_build.unreachable([str(fake_uv(environment.folder, "exec sleep 60"))])
        assert reason == "no answer in 0.2 s"

    def test_a_uv_that_does_not_start_is_told(self, environment: Environment) -> None:
        done = environment.fetch(environment.folder / "absent")
        assert done.returncode == 0
        assert "uv does not start" in done.stdout


class TestMakefile:
    def test_a_name_on_path_that_does_not_run_is_passed_over(self, tmp_path: Path) -> None:
        for name, body in (("python3.11", "exit 127"), ("python3.12", "exit 0"), ("python3.13", "exit 0")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        found = subprocess.run(
            ["make", "-s", "-f", "-", "show"], cwd=ROOT, text=True, capture_output=True, check=True,
            input="include Makefile\nshow: ; @echo $(PYTHON)\n", env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        )  # fmt: skip
        assert found.stdout.strip() == str(tmp_path / "python3.12")
