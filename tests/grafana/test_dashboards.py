"""Dashboards as people will meet them: complete, in step with the code, and asking for series that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from backend.api.metrics import Metrics as WorkerMetrics
from backend.engine.stats import EngineStats
from backend.gpu import Reading
from proxy.observe.collectors import StateKept
from proxy.observe.gauges import PoolGauges
from proxy.observe.metrics import Metrics as ProxyMetrics
from proxy.observe.predictor_gauges import PredictorMetrics
from proxy.workers.gauges import WorkerGauges
from tests.proxy.admin.operator import FakeOperator

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
NAME = re.compile(r"(?<![\w:])(?:trimtab_|vllm:|process_)\w+")
SELECTOR = re.compile(r"((?:trimtab_|vllm:|process_)\w+)\{([^}]*)\}")
OFTEN = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "30m", "$pool": ".*", "$model_name": ".*"}
BASE = "{{ with $externalLabels.trimtab_docs }}{{ . }}/{{ end }}"
"""Where alerts find the documentation, as far as Prometheus was told."""
ADDED = {"instance", "job", "le"}
"""Labels that scraping adds, and the one of histograms."""


@cache
def families() -> dict[str, set[str]]:
    """Return every series name that the proxy and the worker expose, with its labels."""
    operator = FakeOperator()
    operator.metrics.registry.register(PoolGauges(lambda: operator.pools.values(), operator.clock.now))
    gpu = cast("Any", SimpleNamespace(read=lambda: Reading(0.0, 0, 0, 0.0, 0.0)))
    worker = WorkerMetrics("demo", block_size=16, num_blocks=64, gpu=gpu)
    worker.render(EngineStats())
    crew = CollectorRegistry(auto_describe=False)
    crew.register(WorkerGauges(cast("Any", SimpleNamespace(members={}, config=operator.config, restarts=0))))
    crew.register(PredictorMetrics(tuple))
    crew.register(StateKept(lambda: True))
    registries = (crew, operator.metrics.registry, ProxyMetrics(operator.config.pools).registry, worker.registry)
    found: dict[str, set[str]] = {}
    for registry in registries:
        for family in registry.collect():
            for name, labels in _series(family):
                found.setdefault(name, set()).update(labels)
    return found


def _series(family: Metric) -> Iterator[tuple[str, set[str]]]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    labels = set().union(*(sample.labels for sample in family.samples)) if family.samples else set()
    declared = set(getattr(family, "_labelnames", ()))
    for suffix in suffixes:
        yield family.name + suffix, labels | declared


def load(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text())
    return board


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (panel title, expression, legend) for every query, annotations included."""
    shown = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in panels(board)
        for target in panel["targets"]
    ]
    return shown + [
        (note["name"], note["expr"], note["titleFormat"]) for note in board["annotations"].get("list", ())
    ]


every_board = pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])


def test_there_is_a_dashboard_for_every_question() -> None:
    assert [path.stem for path in BOARDS] == ["controller", "overview", "queue", "upstreams", "worker"]
    assert len({load(path)["uid"] for path in BOARDS}) == len(BOARDS)


def test_committed_dashboards_are_what_the_code_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    from grafana.generate import BOARDS as MAKERS
    from grafana.generate import render

    for name, make in MAKERS.items():
        assert (GRAFANA / "dashboards" / f"{name}.json").read_text() == render(make()), (
            f"run grafana/generate.py: {name}"
        )


@every_board
def test_every_panel_explains_itself(path: Path) -> None:
    board = load(path)
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@every_board
def test_panels_have_ids_and_do_not_overlap(path: Path) -> None:
    board = load(path)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        taken |= cells


@every_board
def test_every_query_asks_for_series_and_labels_that_exist(path: Path) -> None:
    for title, expression, _ in queries(load(path)):
        names = set(NAME.findall(expression))
        assert names, title
        assert names <= set(families()), f"{title}: {names - set(families())}"
        for name, body in SELECTOR.findall(expression):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", body))
            assert asked <= families()[name] | ADDED, f"{title}: {name} has no {asked - families()[name]}"


@every_board
def test_counters_are_read_as_rates(path: Path) -> None:
    for title, expression, _ in queries(load(path)):
        for name in NAME.findall(expression):
            if name.endswith(("_total", "_bucket", "_sum", "_count")) and name != "trimtab_config_reloads_total":
                assert re.search(rf"(rate|increase)\({re.escape(name)}", expression), f"{title}: {name}"
        assert "$__interval])" not in expression or "annotation" in title.lower() or "increase" in expression


@every_board
def test_legends_name_labels_that_the_query_keeps(path: Path) -> None:
    for title, expression, legend in queries(load(path)):
        wanted = set(re.findall(r"\{\{(\w+)\}\}", legend))
        kept = re.search(r"^\(?sum by \(([^)]*)\)", expression)
        if kept and " by " not in expression[kept.end() :].split("/")[0]:
            assert wanted <= {label.strip() for label in kept.group(1).split(",")}, title


@every_board
def test_every_variable_is_used(path: Path) -> None:
    text = path.read_text()
    for variable in load(path)["templating"]["list"]:
        assert text.count(f"${variable['name']}") + text.count(f"${{{variable['name']}}}") >= 1, variable["name"]


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@needs_promtool
@every_board
def test_every_query_is_valid_promql(path: Path, tmp_path: Path) -> None:
    rules = []
    for index, (_, expression, _) in enumerate(queries(load(path))):
        for variable, value in OFTEN.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        rules.append({"record": f"panel:{index}", "expr": expression})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rules_ask_for_series_that_exist() -> None:
    rules = yaml.safe_load((GRAFANA / "rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            names = set(NAME.findall(rule["expr"]))
            assert names <= set(families()), names - set(families())


def test_every_alert_has_a_severity_a_summary_and_a_page() -> None:
    rules = yaml.safe_load((GRAFANA / "rules.yml").read_text())
    page = (GRAFANA.parent / "docs" / "alerts.md").read_text()
    headings = {line.removeprefix("## ").strip() for line in page.splitlines() if line.startswith("## ")}
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket", "info")
        assert alert["annotations"]["summary"].endswith(".")
        page_of = f"{BASE}docs/alerts.md#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == page_of
    assert headings == {alert["alert"] for alert in alerts}


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    rules = yaml.safe_load((GRAFANA / "rules.yml").read_text())
    cases = yaml.safe_load((GRAFANA / "rules_test.yml").read_text())
    fires, silent = set(), set()
    for test in cases["tests"]:
        for case in test.get("alert_rule_test", ()):
            (fires if case["exp_alerts"] else silent).add(case["alertname"])
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert fires == silent == alerts


@needs_promtool
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml"),
                  ("test", "rules", "rules_test.yml")], ids=["rules", "config", "alerts"],
)  # fmt: skip
@pytest.mark.slow
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=GRAFANA, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_gpu_its_panels_and_their_heading_are_left_out_and_nothing_else() -> None:
    from grafana.check import GPU, without_gpu

    for path in BOARDS:
        board = load(path)
        kept = without_gpu(board)["panels"]
        gone = [panel for panel in board["panels"] if panel not in kept]
        assert all(panel["type"] == "row" or GPU in panel["targets"][0]["expr"] for panel in gone)
        assert len(gone) == (5 if path.stem == "worker" else 0)
