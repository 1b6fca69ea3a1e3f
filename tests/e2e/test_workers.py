"""`trimtab serve --workers 2` as people start it."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from benchmarks.golden import run
from tests.e2e.spine_process import Trimtab, gone, mock_upstream
from tests.e2e.worker_process import eventually
from tests.support.stateful_upstream import StatefulUpstream

REQUESTS = "trimtab_requests_total"


def chat(url: str, **mock: object) -> int:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"Content-Type": "application/json", "x-mock": json.dumps(mock)}
    with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=30) as answer:
        answer.read()
        return int(answer.status)


def workers(trimtab: Trimtab) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker \d serves \(process (\d+)\)", trimtab.err)]


@pytest.mark.parametrize("count", [1, 2])
async def test_every_counter_equals_the_truth(tmp_path: Path, count: int) -> None:
    fates, differences, _ = await run(400, count, tmp_path)
    assert len(fates) == 400
    assert differences == []


def test_a_worker_that_dies_is_replaced_and_what_it_counted_stays(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        for _ in range(20):
            assert chat(trimtab.proxy) == 200
        before = trimtab.metrics()
        os.kill(workers(trimtab)[0], signal.SIGKILL)
        for _ in range(20):
            assert chat(trimtab.proxy) == 200, "connections wait in the listening socket that the supervisor holds"
        eventually(lambda: trimtab.metrics()["trimtab_proxy_worker_restarts_total"] == 1, within_s=30)
        after = trimtab.metrics()
        assert after[REQUESTS] == before[REQUESTS] + 20 == 40
        counters = [name for name in before if name.startswith("trimtab_") and name.endswith(("_total", "_count"))]
        assert [name for name in counters if "worker" not in name and after[name] < before[name]] == []
        assert trimtab.stop() == 0


def test_who_keeps_a_response_is_known_to_every_worker(tmp_path: Path) -> None:
    """Also to one that is new, and when the follow-up comes at once over another connection."""

    def ask(url: str, method: str, path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
        host, port = url.removeprefix("http://").split(":")
        client = HTTPConnection(host, int(port), timeout=30)
        headers = {"Content-Type": "application/json"} if body else {}
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        data = json.loads(answer.read())
        client.close()
        return answer.status, data.get("id", "")

    file = tmp_path / "trimtab.yaml"
    with StatefulUpstream().in_a_thread() as one, StatefulUpstream().in_a_thread() as two:
        config = {"upstreams": [one.url, two.url], "routing": "round-robin", "retries": {"on": []}}
        file.write_text(json.dumps(config))
        with Trimtab.serve(tmp_path, "-c", str(file), "--workers", "2") as trimtab:
            ids = [""]
            for _ in range(30):
                more = {"previous_response_id": ids[-1]} if ids[-1] else {}
                status, id = ask(trimtab.proxy, "POST", "/v1/responses", {"model": "m", "input": "hi", **more})
                assert status == 200
                ids.append(id)
            for _ in range(6):
                ids.append(ask(trimtab.proxy, "POST", "/v1/responses", {"model": "m", "input": "hi"})[1])
            assert one.kept
            assert two.kept
            for id in ids[1:]:
                assert ask(trimtab.proxy, "GET", f"/v1/responses/{id}")[0] == 200
            os.kill(workers(trimtab)[0], signal.SIGKILL)
            eventually(lambda: len(workers(trimtab)) == 3, within_s=30)
            for id in ids[1:]:
                assert ask(trimtab.proxy, "GET", f"/v1/responses/{id}")[0] == 200
            with urlopen(f"{trimtab.admin}/metrics") as answer:
                text = answer.read().decode()
            assert 'trimtab_follow_ups_total{pool="default",result="unknown"} 0.0' in text
            assert trimtab.metrics()["trimtab_follow_ups_total"] >= 36
            assert trimtab.stop() == 0


def test_a_changed_promise_reaches_every_worker(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        trimtab.pool("PATCH", "/slo", {"e2e_ms": 5000})
        for _ in range(30):
            chat(trimtab.proxy)
        found = trimtab.metrics()
        assert found["trimtab_slo_requests_total"] == 30
        assert trimtab.pool()["live"]["counts"]["ok"] == 30
        assert trimtab.stop() == 0


def test_a_reload_that_one_worker_cannot_follow_changes_none(tmp_path: Path) -> None:
    file = tmp_path / "trimtab.yaml"
    with mock_upstream() as url:
        file.write_text(json.dumps({"upstreams": [url], "slo": {"e2e_ms": 1000}}))
        with Trimtab.serve(tmp_path, "-c", str(file), "--workers", "2") as trimtab:
            file.write_text(json.dumps({"upstreams": [url], "slo": {"e2e_ms": -1}}))
            status, _ = trimtab.request("POST", "/admin/v1/reload")
            assert status == 422
            assert trimtab.pool()["slo"]["e2e_ms"] == 1000
            file.write_text(json.dumps({"upstreams": [url], "slo": {"e2e_ms": 2000}, "depth": 5}))
            status, answer = trimtab.request("POST", "/admin/v1/reload")
            assert (status, answer["generation"]) == (200, 2)
            assert trimtab.pool()["slo"]["e2e_ms"] == 2000
            assert chat(trimtab.proxy) == 200
            assert trimtab.stop() == 0


def test_what_is_under_way_finishes_when_asked_to_stop(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        answers: list[int] = []
        client = threading.Thread(target=lambda: answers.append(chat(trimtab.proxy, delay=1.0)))
        client.start()
        eventually(lambda: trimtab.metrics()["trimtab_inflight"] == 1, within_s=30)
        assert trimtab.stop() == 0
        client.join()
        assert answers == [200]


def test_sigterm_to_one_worker_replaces_it_without_a_lost_request(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        chat(trimtab.proxy)
        os.kill(workers(trimtab)[0], signal.SIGTERM)
        for _ in range(20):
            assert chat(trimtab.proxy) == 200
        eventually(lambda: len(workers(trimtab)) == 3, within_s=30)
        assert trimtab.metrics()[REQUESTS] == 21
        assert trimtab.stop() == 0


def test_a_worker_that_is_replaced_serves_whoever_was_already_connected(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        chat(trimtab.proxy)
        host, port = trimtab.proxy.removeprefix("http://").split(":")
        clients = [HTTPConnection(host, int(port), timeout=30) for _ in range(16)]
        for client in clients:
            client.request("GET", "/-/trimtab/healthz")  # accepted, by one of the two, and kept
            assert client.getresponse().read()
        os.kill(workers(trimtab)[0], signal.SIGTERM)
        time.sleep(0.1)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        for client in clients:
            client.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answers = [client.getresponse() for client in clients]
        assert [answer.status for answer in answers] == [200] * 16
        assert any(answer.getheader("connection") == "close" for answer in answers), "the one had none of them"
        for client in clients:
            client.close()
        eventually(lambda: len(workers(trimtab)) == 3, within_s=30)
        assert trimtab.stop() == 0


def test_workers_whose_leader_is_gone_serve_on(tmp_path: Path) -> None:
    with mock_upstream() as url, Trimtab.serve(tmp_path, "--upstream", url, "--workers", "2") as trimtab:
        proxy, processes = trimtab.proxy, workers(trimtab)
        trimtab.process.kill()
        trimtab.process.wait()
        try:
            eventually(lambda: "the leader is gone" in trimtab.err)
            assert {chat(proxy) for _ in range(20)} == {200}
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGTERM)
            eventually(lambda: all(gone(pid) for pid in processes), within_s=30)
