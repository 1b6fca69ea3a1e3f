"""What `deploy/` holds fits the product: paths exist, commands are ours, nothing runs as root, health checks tell."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession

from proxy.config.load import check
from proxy.config.source import read_text
from proxy.state.location import default_path
from tests.docs.pages import ROOT
from tests.docs.test_commands import understand
from tests.proxy.app.conftest import make_rig
from tests.support.mock_upstream import MockUpstream

__all__ = ["make_rig"]

DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text()
INSTRUCTIONS = [
    tuple(line.split(None, 1))
    for line in re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text()).splitlines()
    if line.strip() and not line.startswith("#")
]


def instructions(name: str) -> list[str]:
    return [rest for word, rest in INSTRUCTIONS if word == name]


def health_checks() -> dict[int, list[str]]:
    """Return the command of every health check by the port it asks."""
    found = {}
    for text in instructions("HEALTHCHECK"):
        command = json.loads(text[text.index("CMD ") + 4 :])
        port = re.search(r"127\.0\.0\.1:(\d+)/", command[-1])
        assert port is not None
        found[int(port[1])] = command
    return found


class TestContainerfile:
    def test_everything_copied_is_there_and_is_all_that_the_package_is_made_of(self) -> None:
        copied = [
            source for text in instructions("COPY") if not text.startswith("--from") for source in text.split()[:-1]
        ]
        assert [source for source in copied if not (ROOT / source).exists()] == []
        assert {"policies", "controller", "proxy", "backend", "pyproject.toml", "constraints.txt"} <= set(copied)

    def test_stages_copied_from_exist(self) -> None:
        stages = {text.split(" AS ")[1] for text in instructions("FROM")}
        wanted = {match[1] for text in instructions("COPY") if (match := re.match(r"--from=(\S+)", text))}
        assert wanted
        assert wanted <= stages
        assert {"proxy", "worker"} <= stages

    def test_nothing_runs_as_root(self) -> None:
        stage, users = "", dict.fromkeys(("proxy", "worker"), "")
        for word, rest in INSTRUCTIONS:
            if word == "FROM":
                stage = rest.split(" AS ")[1]
            elif word == "USER":
                users[stage] = rest
        assert users == {"proxy": "10001", "worker": "10001"}

    def test_the_state_that_a_volume_keeps_is_where_the_proxy_looks_for_it(self) -> None:
        (given,) = re.findall(r"STATE_DIRECTORY=(\S+)", " ".join(instructions("ENV")))
        assert any(
            volume.endswith(f":{given}") for volume in yaml.safe_load(COMPOSE)["services"]["trimtab"]["volumes"]
        )
        assert f"-m 700 {given}" in " ".join(instructions("RUN")), "a volume takes over whose folder it covers"
        config = check(read_text("upstreams: [http://a:1]", "x", {}))
        path = default_path(config, {"STATE_DIRECTORY": given})
        assert path is not None
        assert path.parent == Path(given)

    def test_the_commands_are_understood(self) -> None:
        for entry, rest in zip(instructions("ENTRYPOINT"), instructions("CMD"), strict=True):
            words = [*json.loads(entry), *json.loads(rest)]
            assert words[0] == "trimtab"
            understand(words[1:])

    async def test_the_health_check_of_the_proxy_tells_whether_it_answers(self, make_rig: Callable[..., Any]) -> None:
        command = health_checks()[8080]
        async with MockUpstream() as upstream:
            rig = await make_rig(upstreams=[upstream.url])
            port = rig.data.rpartition(":")[2]
            assert await self._run(command, "8080", port) == 0
            await rig.proxy.stop()
            assert await self._run(command, "8080", port) != 0

    async def _run(self, command: list[str], port: str, ours: str) -> int:
        words = [sys.executable, *(word.replace(f":{port}/", f":{ours}/") for word in command[1:])]
        process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)
        return await asyncio.wait_for(process.wait(), 30)

    def test_the_health_check_of_the_worker_asks_a_path_that_it_answers(self) -> None:
        command = health_checks()[8000]
        assert "/health'" in command[-1]
        assert '"/health"' in (ROOT / "backend" / "server.py").read_text()

    def test_extras_installed_exist(self) -> None:
        project = (ROOT / "pyproject.toml").read_text()
        for text in instructions("RUN"):
            for extra in re.findall(r"'\.\[(\w+)\]'", text):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


class TestCompose:
    def services(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
        return found

    def test_every_file_mounted_is_there(self) -> None:
        for service in self.services().values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source.startswith("."):
                    assert (DEPLOY / source).exists(), source

    def test_images_are_built_from_stages_that_exist(self) -> None:
        stages = {text.split(" AS ")[1] for text in instructions("FROM")}
        built = [service["build"] for service in self.services().values() if "build" in service]
        assert {build["target"] for build in built} <= stages
        assert all((DEPLOY / build["context"] / build["dockerfile"]).is_file() for build in built)

    def test_ours_run_on_a_read_only_root_and_nothing_is_open_to_the_network(self) -> None:
        for name, service in self.services().items():
            if "build" in service:
                assert service["read_only"] is True, name
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name

    def test_every_service_is_confined(self) -> None:
        for name, service in self.services().items():
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
            assert "cap_add" not in service, name
            assert "privileged" not in service, name
            assert re.fullmatch(r"\d+g|\$\{TRIMTAB_\w+:-\d+g\}", service["mem_limit"]), name
            assert service["pids_limit"] > 0, name
            assert service["restart"] == "unless-stopped", name

    def test_only_the_proxy_is_given_the_token_of_its_admin_api(self) -> None:
        whole = yaml.safe_load(COMPOSE)
        del whole["services"]["trimtab"]["environment"]["TRIMTAB_ADMIN__TOKEN"]
        assert "TRIMTAB_TOKEN" not in json.dumps(whole)

    async def test_prometheus_may_scrape_without_a_token(self, make_rig: Callable[..., Any]) -> None:
        async with MockUpstream() as upstream, ClientSession() as session:
            rig = await make_rig(upstreams=[upstream.url], admin={"token": "t" * 20})
            for path, status in (("/metrics", 200), ("/admin/v1/pools", 401)):
                async with session.get(f"{rig.admin}{path}") as answer:
                    assert answer.status == status, path

    def test_the_configuration_mounted_is_valid(self) -> None:
        text = (DEPLOY / "trimtab.yaml").read_text()
        config = check(read_text(text, "deploy/trimtab.yaml", {}))
        hosts = {re.sub(r"https?://([^:/]+).*", r"\1", upstream.url) for upstream in config.pools[0].upstreams}
        assert hosts <= set(self.services())

    def test_the_environment_given_is_understood(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = self.services()["trimtab"]["environment"]
        for name, value in given.items():
            monkeypatch.setenv(name, "t" * 20 if "$" in value else value)
        understand(["config", "check", "-c", str(DEPLOY / "trimtab.yaml")])
        done = subprocess.run(
            [sys.executable, "-m", "proxy.cli", "config", "check", "-c", str(DEPLOY / "trimtab.yaml")],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
    def test_the_scrape_configuration_in_it_is_valid(self, tmp_path: Path) -> None:
        content = yaml.safe_load(COMPOSE)["configs"]["prometheus"]["content"]
        (tmp_path / "prometheus.yml").write_text(content)
        shutil.copy(ROOT / "grafana" / "rules.yml", tmp_path)
        done = subprocess.run(
            ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_the_jobs_are_those_that_rules_and_dashboards_ask_for(self) -> None:
        ours = yaml.safe_load(yaml.safe_load(COMPOSE)["configs"]["prometheus"]["content"])["scrape_configs"]
        usual = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["scrape_configs"]
        assert [job["job_name"] for job in ours] == [job["job_name"] for job in usual]


class TestUnit:
    TEXT = (DEPLOY / "trimtab.service").read_text()

    def test_the_command_is_understood(self) -> None:
        start = re.search(r"^ExecStart=\S+/trimtab (.+)$", self.TEXT, re.MULTILINE)
        assert start is not None
        understand(start[1].split())

    def setting(self, name: str) -> str:
        (value,) = re.findall(rf"^{name}=(.*)$", self.TEXT, re.MULTILINE)
        return str(value)

    def test_it_has_a_bound_on_memory_and_comes_back_from_it(self) -> None:
        assert re.fullmatch(r"[1-9]\d*[MG]", self.setting("MemoryMax"))
        assert int(self.setting("TasksMax")) > 0
        assert self.setting("OOMPolicy") == "continue", "a worker that is killed is its supervisor's to replace"
        assert self.setting("Restart") in ("on-failure", "always")
        assert self.setting("StartLimitIntervalSec") == "0", "it is never given up"

    def test_stopping_takes_longer_than_the_default_drain(self) -> None:
        stop = re.search(r"^TimeoutStopSec=(\d+)$", self.TEXT, re.MULTILINE)
        drain = check(read_text("upstreams: [http://a:1]", "x", {})).drain
        assert stop is not None
        assert int(stop[1]) > drain.grace_s + drain.cap_s

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
    def test_systemd_accepts_it(self, tmp_path: Path) -> None:
        unit = tmp_path / "trimtab.service"
        unit.write_text(self.TEXT.replace("/opt/trimtab/bin/trimtab", sys.executable))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
