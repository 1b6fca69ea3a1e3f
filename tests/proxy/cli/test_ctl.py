"""`trimtab ctl` against a real admin API."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result
from pydantic import SecretStr

from controller.slo import SLO
from proxy.admin.server import make_app
from proxy.cli import main
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import CONFIG, FakeOperator

Ctl = Callable[..., Awaitable[Result]]


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
async def ctl(operator: FakeOperator) -> AsyncIterator[Ctl]:
    async with TestServer(make_app(operator, AdminConfig(port=0))) as server:
        url = str(server.make_url(""))

        async def invoke(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, main, ["ctl", "--url", url, *arguments])

        yield invoke


async def said(ctl: Ctl, *arguments: str) -> str:
    done = await ctl(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_pools_on_a_line_each(ctl: Ctl) -> None:
    lines = (await said(ctl, "pools")).splitlines()
    assert lines[0].split() == ["POOL", "SLO", "LAW", "BATCH", "WINDOW", "QUEUED", "INFLIGHT"]
    assert lines[1].startswith("chat   ttft 500 ms, e2e 10000 ms at p99  deadline  8      5 ms")
    assert lines[2].startswith("embed  none")


async def test_json_is_the_apis_own_answer(ctl: Ctl) -> None:
    assert [pool["name"] for pool in json.loads(await said(ctl, "--json", "pools"))["pools"]] == ["chat", "embed"]


async def test_show_has_latencies_and_upstreams(ctl: Ctl) -> None:
    text = await said(ctl, "-p", "chat", "show")
    assert "LATENCY" in text
    assert "ttft" in text
    assert "http://127.0.0.1:8000" in text


async def test_slo_pin_unpin(ctl: Ctl, operator: FakeOperator) -> None:
    controller = operator.pools["chat"].controller
    await said(ctl, "-p", "chat", "slo", "ttft_ms=400", "e2e_ms=none", "quantile=0.95")
    assert controller.slo == SLO(ttft_s=0.4, quantile=0.95)
    await said(ctl, "-p", "chat", "slo", "--class", "batch", "ttft_ms=none", "e2e_ms=60000")
    assert (controller.slo.ttft_s, controller.slo_of("batch")) == (0.4, SLO(e2e_s=60.0, quantile=0.95))
    await said(ctl, "-p", "chat", "slo", "--class", "batch")
    assert controller.slo_of("batch") == controller.slo
    assert "3*" in await said(ctl, "-p", "chat", "pin", "max_batch_size=3", "window_ms=0")
    await said(ctl, "-p", "chat", "unpin", "window_ms")
    assert controller.pins == {"max_batch_size": 3.0}
    await said(ctl, "-p", "chat", "unpin")
    assert controller.pins == {}


@pytest.mark.parametrize(
    ("duration", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1.5d", 129_600)]
)
async def test_changes_for_a_while(ctl: Ctl, operator: FakeOperator, duration: str, seconds: float) -> None:
    await said(ctl, "-p", "chat", "pin", "max_batch_size=3", "--for", duration)
    assert operator.temporary.pending("chat")[0]["in_s"] == seconds
    assert f"setpoints goes back in {seconds:g} s" in await said(ctl, "-p", "chat", "show")


async def test_laws_are_listed_with_what_they_can_be_told(ctl: Ctl) -> None:
    text = await said(ctl, "-p", "chat", "law")
    assert "deadline: Two loops." in text
    assert "back_off=0.9" in text
    assert "one of goodput, efficiency" in text
    assert "objective=goodput" in text


async def test_law_freeze_rollback(ctl: Ctl, operator: FakeOperator) -> None:
    controller = operator.pools["chat"].controller
    await said(ctl, "-p", "chat", "law", "fixed")
    await said(ctl, "-p", "chat", "freeze")
    assert (controller.law_name, controller.frozen) == ("fixed", True)
    await said(ctl, "-p", "chat", "freeze", "--off")
    await said(ctl, "-p", "chat", "rollback", "1")
    assert (controller.law_name, controller.frozen) == ("deadline", False)


async def test_decisions_read_as_sentences(ctl: Ctl) -> None:
    await said(ctl, "-p", "chat", "pin", "max_batch_size=3")
    (line,) = (await said(ctl, "-p", "chat", "decisions")).splitlines()
    assert "chat#1  admin.pin: admin:" in line
    assert "pinned max_batch_size = 3." in line


async def test_reload_says_what_changed(ctl: Ctl) -> None:
    assert await said(ctl, "reload") == "generation 2; changed: pools[0].slo\n"


async def test_config_is_yaml(ctl: Ctl) -> None:
    assert "name: chat" in await said(ctl, "config")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "chatt", "show"), "trimtab: There is no pool 'chatt'; known pools: chat, embed.\n"),
        (("show",), "trimtab: which pool? There are chat, embed; choose with --pool\n"),
        (
            ("-p", "chat", "slo", "ttft_ms=0"),
            "trimtab: ttft_ms: got 0; accepted: a number from 0.001 to 86400000 (milliseconds)\n",
        ),
        (("-p", "chat", "slo", "ttft_ms"), "trimtab: ttft_ms: write it as key=value\n"),
        (("-p", "chat", "slo"), "trimtab: say which target: ttft_ms=400\n"),
        (
            ("-p", "chat", "pin", "max_batch_size=999"),
            "trimtab: max_batch_size: got 999; accepted: 1 to 64, the pool's setpoints.max_batch_size\n",
        ),
    ],
)
async def test_refusals_are_one_line_and_exit_with_2(ctl: Ctl, arguments: tuple[str, ...], message: str) -> None:
    done = await ctl(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", message)


async def test_a_refused_reload_says_why(ctl: Ctl, operator: FakeOperator) -> None:
    operator.next_reload = ConfigError([Problem("trimtab.yaml:3", "slo.ttft", "unknown key")])
    done = await ctl("reload")
    assert (done.exit_code, done.stderr) == (2, "trimtab: slo.ttft: unknown key\n")


@pytest.mark.parametrize(("what", "words"), [("decisions", "nothing has been decided yet"), ("audit", "no operator")])
async def test_where_there_is_nothing_to_list_it_says_so_beside_the_output(ctl: Ctl, what: str, words: str) -> None:
    done = await ctl("-p", "chat", what)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith(words)
    assert (await ctl("-p", "chat", "--json", what)).output == ""


async def test_another_port_than_the_admin_apis_is_asked_about() -> None:
    async with TestServer(web.Application()) as server:
        url = str(server.make_url(""))
        done = await asyncio.to_thread(CliRunner().invoke, main, ["ctl", "--url", url, "pools"])
    assert done.exit_code == 2
    assert done.stderr == f"trimtab: {url.rstrip('/')}: 404 Not Found; is this the proxy's admin port?\n"


def test_nobody_there_is_one_line_and_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    done = CliRunner().invoke(main, ["ctl", "--url", f"http://127.0.0.1:{port}", "pools"])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"trimtab: http://127.0.0.1:{port}: ")
    assert done.stderr.endswith("is the proxy running, and is this its admin port?\n")


async def test_the_only_pool_need_not_be_named() -> None:
    operator = FakeOperator({"pools": CONFIG["pools"][:1]})
    async with TestServer(make_app(operator, AdminConfig(port=0))) as server:
        arguments = ["ctl", "--url", str(server.make_url("")), "pin", "max_batch_size=2"]
        done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert done.exit_code == 0
    assert operator.pools["chat"].controller.pins == {"max_batch_size": 2.0}


async def test_the_token_comes_from_the_environment(operator: FakeOperator) -> None:
    config = AdminConfig(port=0, token=SecretStr("t" * 16))
    async with TestServer(make_app(operator, config)) as server:
        arguments = ["ctl", "--url", str(server.make_url("")), "pools"]
        without = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        environ = {"TRIMTAB_CTL_TOKEN": "t" * 16}
        with_it = await asyncio.to_thread(lambda: CliRunner().invoke(main, arguments, env=environ))
    assert (without.exit_code, without.stderr) == (2, "trimtab: A bearer token is required.\n")
    assert with_it.exit_code == 0


async def test_experiments_from_the_shell(ctl: Ctl) -> None:
    assert await said(ctl, "-p", "chat", "experiment") == "no experiment is running\n"
    await said(ctl, "-p", "chat", "experiment", "fixed", "--block", "5m", "--pairs", "4")
    assert "arm" in await said(ctl, "-p", "chat", "experiment")
    await said(ctl, "-p", "chat", "experiment", "--stop")
    assert await said(ctl, "-p", "chat", "experiment") == "no experiment is running\n"


async def test_an_upstream_is_drained_waited_for_and_taken_back_in(ctl: Ctl, operator: FakeOperator) -> None:
    pool = operator.pools["chat"]
    url = pool.config.upstreams[0].url
    reported = {"running": 3.0, "waiting": 0.0, "kv_usage": 0.5, "age_s": 2.0, "stale": False, "error": ""}
    pool.state = {"upstreams": [{"url": url, "state": "drained", "inflight": 0, "served": 9, "reported": reported}]}
    lines = (await said(ctl, "-p", "chat", "drain", url, "--wait")).splitlines()
    assert lines[0].split() == ["UPSTREAM", "STATE", "INFLIGHT", "SERVED", "FAILURES",
                                "SAYS", "RUNNING", "WAITING", "KV", "%", "AGE", "s"]  # fmt: skip
    assert lines[1].split() == [url, "drained", "0", "9", "-", "3", "0", "50", "2.0"]
    assert pool.taken_out == (url,)
    await said(ctl, "-p", "chat", "drain", url, "--undo")
    assert pool.taken_out == ()
    refused = await ctl("-p", "chat", "drain", "http://who")
    assert refused.exit_code == 2
    assert url in refused.output
