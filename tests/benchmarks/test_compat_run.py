"""The compatibility run, end to end, with the stand-in server that needs no install."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.compat.checks import Outcome, check
from benchmarks.compat.compare import Verdict
from benchmarks.compat.exchange import Ask, ask, ask_together, post
from benchmarks.compat.report import as_json, details, table
from benchmarks.compat.server import Server
from benchmarks.compat.servers import SERVERS
from benchmarks.compat.stand_ins import OLLAMA, TEI, TGI
from benchmarks.environments import Environment
from proxy.config.load import check as check_config
from proxy.config.profile import profile_names
from proxy.config.source import read_text
from tests.support.mock_upstream import Behaviour, MockUpstream


@pytest.mark.parametrize("server", [OLLAMA, TGI, TEI], ids=lambda server: server.name)
def test_requests_to_a_stand_in_are_the_same_both_ways(server: Server, tmp_path: Path) -> None:
    outcome = check(replace(server, probes=()), tmp_path)
    assert not outcome.failure
    assert details(outcome) == []
    assert len(outcome.verdicts) == len(server.asks) + sum(map(len, server.together))
    assert all(verdict.status == 200 for verdict in outcome.merged)
    assert not server.together or outcome.largest_batch > 1


def test_a_server_that_ends_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    dead = replace(OLLAMA, command=lambda place: ["python3", "-c", "raise SystemExit('no weights')"])
    outcome = check(dead, tmp_path)
    assert "no weights" in outcome.failure
    assert "no weights" in table([outcome])


def test_what_is_not_installed_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "installed", property(lambda self: False))
    assert "--install" in check(SERVERS["vllm"], tmp_path).failure


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_every_server_has_requests_and_a_pool_that_is_valid(server: Server) -> None:
    assert server.asks
    assert server.profile in profile_names()
    pool = {"name": server.name, "upstreams": [{"url": "http://127.0.0.1:1", "profile": server.profile}]}
    text = yaml.safe_dump({"pools": [{**pool, **server.pool}]})
    assert check_config(read_text(text, server.name, {})).pools
    names = [question.name for question in server.asks]
    assert len(names) == len(set(names))


async def test_an_exchange_keeps_fields_status_and_what_arrived_of_a_broken_body() -> None:
    how = Behaviour(status=418, headers=[["X-A", "1"], ["x-a", "2"]], body="hello", cut_at=3, framing="length")
    async with MockUpstream(how) as up:
        answer = await asyncio.to_thread(ask, up.url, Ask("x", "GET", "/"))
    assert (answer.status, answer.reason, answer.body, answer.whole) == (418, "Mock", b"hel", False)
    assert [field for field in answer.headers if field[0].lower() == "x-a"] == [("X-A", "1"), ("x-a", "2")]


async def test_requests_sent_together_are_answered_in_their_order() -> None:
    questions = tuple(post(str(n), "/v1/embeddings", {"model": "m", "input": "x" * n}) for n in range(1, 9))
    async with MockUpstream() as up:
        answers = await asyncio.to_thread(ask_together, up.url, questions)
    assert [json.loads(answer.body)["data"][0]["embedding"][0] for answer in answers] == list(map(float, range(1, 9)))


def test_the_table_names_what_differs_and_the_json_says_how() -> None:
    outcome = Outcome(OLLAMA)
    outcome.requests = [
        Verdict("fine", status=200, adds=["x-request-id"]),
        Verdict("refused", status=400, refused=True),
        Verdict("wrong", status=500, differences=["status: 500 direct, 502 through"], varies=["body"]),
    ]
    row = table([outcome]).splitlines()[-1]
    assert "3 (2 errors)" in row
    assert "1: wrong" in row
    assert "`x-request-id`" in row
    assert details(outcome) == ["ollama: wrong: status: 500 direct, 502 through"]
    document = json.loads(as_json([outcome]))
    assert [verdict["name"] for verdict in document["servers"][0]["requests"]] == ["fine", "refused", "wrong"]
    assert document["servers"][0]["requests"][2]["differences"]
