"""Whatever callers invent, what is remembered of it is bounded: 50,000 names of each kind, then the sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

import orjson
import pytest

from controller.observation import Observation, Result
from controller.predictor.predictor import FEATURES, LengthPredictor
from controller.predictor.trainer import Trainer
from policies.base import Job
from policies.registry import create_policy, policy_names
from proxy.config.model import Config
from proxy.http.incoming import Limits
from proxy.observe.metrics import Metrics
from proxy.serving.routes import RouteTable
from proxy.upstream.affinity import prefix_key
from proxy.upstream.routing import PrefixAffinity
from proxy.wire.base import BadRequest, Call, Head
from proxy.wire.openai import CHAT
from proxy.wire.registry import detect
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT as BODY
from tests.support.raw_http import RawClient

NAMES = 50_000


def collections_of(
    thing: Any, name: str = "it", seen: set[int] | None = None, depth: int = 8
) -> Iterator[tuple[str, int]]:
    """Yield every collection that hangs on `thing`, as far as our own objects go, with its size."""
    seen = set() if seen is None else seen
    if id(thing) in seen or depth == 0:
        return
    seen.add(id(thing))
    if isinstance(thing, Sized) and not isinstance(thing, str | bytes):
        yield name, len(thing)
    slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())]
    if type(thing).__module__.split(".")[0] in ("controller", "policies", "proxy"):
        for attribute in {*vars(type(thing)), *getattr(thing, "__dict__", {}), *slots}:
            value = (
                getattr(thing, "__dict__", {}).get(attribute)
                if attribute not in slots
                else getattr(thing, attribute, None)
            )
            if value is not None:
                yield from collections_of(value, f"{name}.{attribute}", seen, depth - 1)


def largest(thing: Any) -> tuple[int, str]:
    return max(((size, name) for name, size in collections_of(thing)), default=(0, "nothing"))


def test_the_predictor_forgets_models_tenants_and_prompts() -> None:
    predictor = LengthPredictor(learn=False, history_keys=5_000)
    trainer = Trainer(FEATURES, now=0.0, every_s=1e9, rows=10**9, min_rows=10**9)
    predictor.learn_with(trainer)
    for number in range(NAMES // 2):
        name = f"invented {number}"
        said = predictor.predict(
            model=name, tenant=name, route="r", text=f"{name} {'x' * 60}", params={"system": name}
        )
        predictor.observe(said, number % 4_000, "stop")
    assert predictor.failures == 0
    size, where = largest(predictor)
    assert size <= 16_000, where
    assert len(trainer._reservoir) <= 16_000


@pytest.mark.parametrize("policy", policy_names())
def test_policies_forget_tenants_and_jobs(policy: str) -> None:
    made: Any = create_policy(policy, {})
    standing = Job("0", 0.0, tenant="standing")
    made.key(standing)
    for number in range(NAMES):
        job = Job(str(number), float(number), tenant=f"invented {number}")
        made.key(job)
        if number % 2:
            made.dispatched(job)
            made.completed(job, 10)
        else:
            made.removed(job)
    size, where = largest(made)
    assert size <= 10_001, where


def test_metrics_fold_what_nobody_configured() -> None:
    metrics = Metrics(Config.model_validate({"upstreams": ["http://a"]}).pools, process=False)
    for number in range(NAMES):
        name = f"invented-{number}"
        obs = Observation(name, 0.0, 1.0, Result.OK, 0, klass=name, tenant=name, upstream=name)
        metrics.request_finished(obs, name, number)
        metrics.request_finished(
            Observation("default", 0.0, 1.0, Result.OK, 0, klass=name, upstream="http://a"), name, 200
        )
        metrics.shed(name, "queue_full")
        metrics.fell_back(name, name, "overload")
    metrics.settle()
    size, where = largest(metrics)
    assert size <= 10_000, where
    assert len(metrics.render()[0]) < 2_000_000


def test_prefixes_are_remembered_up_to_their_number() -> None:
    endpoint: Any = object()
    router = PrefixAffinity(max_blocks=1_000, max_load_factor=2.0)
    for number in range(NAMES):
        key = prefix_key(Call(CHAT, b"", text=f"{number} " * 300), 256)
        assert key is not None
        router._remember(key, endpoint)
    assert largest(router)[0] <= 1_000


async def test_paths_are_remembered_up_to_their_number() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        table: RouteTable = stack.handler.service.table
        for number in range(NAMES):
            table.candidates("GET", f"/invented/{number}")
            table.candidates("GET", f"/{number}{'x' * 5_000}")
        assert largest(table)[0] <= 1_024
        assert sum(sys.getsizeof(path) for _, path in table._by_path) < 1_000_000


async def test_a_whole_proxy_that_is_asked_for_invented_things_stays_as_it_was() -> None:
    async with MockUpstream() as up, Stack(up.url, policy="fair", predictor={"mode": "history"}) as stack:
        before = dict(collections_of(stack.pool))
        async with RawClient(stack.port) as client:
            for number in range(300):
                body = {**BODY, "model": f"invented {number}", "user": str(number), f"field {number}": number}
                fields = {"X-Trimtab-Tenant": f"t{number}", "X-Request-Id": f"i{number}", f"X-{number}": "y"}
                assert (await client.ask("POST", "/v1/chat/completions", fields, body=body)).status == 200
                await client.ask("GET", f"/invented/{number}", fields)
            await stack.settled()
        grown = dict(collections_of(stack.pool.queue, "it.queue"))
        assert not {name: size for name, size in grown.items() if size > before.get(name, 0) + 2}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/api/chat", "/v1/rerank"]
)
def test_a_name_that_is_none_is_refused(path: str) -> None:
    wire, route = detect("POST", path)
    for size, good in ((1_024, True), (1_025, False), (1_000_000, False)):
        body = orjson.dumps({"model": "m" * size, "messages": [], "input": "x"})
        if good:
            assert wire.parse(route, Head("POST", path, path, ()), body).model == "m" * size
        else:
            with pytest.raises(BadRequest, match="longer than 1024"):
                wire.parse(route, Head("POST", path, path, ()), body)


def test_limits_have_bounds_by_default() -> None:
    limits = Limits()
    assert limits.max_held_bytes < 1 << 33
    assert limits.max_json_values <= 10_000_000
