"""Whatever is sent, the admin API answers with what its own document names. `make admin-fuzz` digs deeper."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admin.openapi import OPERATIONS, Operation, document
from proxy.admin.server import make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator

ENDLESS = "/admin/v1/events"
FUZZED = [operation for operation in OPERATIONS if operation.path != ENDLESS]
WORDS = st.sampled_from(["deadline", "aimd", "fixed", "chat", "none", "", "x" * 70, "é\n"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0.5, 0.99, 1.0, 1, 8, 64, 500, 1e308, -0.0])
    | WORDS
    | st.text(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def bodies(operation: Operation) -> st.SearchStrategy[bytes | None]:
    """Return bodies that are nearly right, quite wrong, no JSON at all, or absent."""
    fields = list(operation.body.model_fields) if operation.body else ["anything"]
    near = st.dictionaries(st.sampled_from(fields), ANYTHING, max_size=len(fields))
    shaped = (near | ANYTHING).map(lambda value: json.dumps(value).encode())
    return shaped | st.none() | st.binary(max_size=8)


def documented(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = document()["paths"][operation.path][operation.method.lower()]["responses"]
    return found


@pytest.mark.parametrize("operation", FUZZED, ids=[f"{one.method} {one.path}" for one in FUZZED])
def test_every_answer_is_one_that_the_document_names(operation: Operation) -> None:
    known = documented(operation)
    with asyncio.Runner() as runner:
        client = runner.run(_client())

        @given(
            body=bodies(operation),
            pool=st.sampled_from(["chat", "embed", "nowhere", "%00", "é"]),
            query=st.dictionaries(st.sampled_from(["for_s", "limit", "name", "since"]), SCALARS.map(str), max_size=2),
            match=st.sampled_from([None, "*", '"other"', "", 'W/"x"']),
            kind=st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain", None]),
        )
        @settings(max_examples=25, deadline=None, derandomize=True)
        def send(body: bytes | None, pool: str, query: dict[str, str], match: str | None, kind: str | None) -> None:
            runner.run(_one(client, operation, known, body, pool, query, match, kind))

        send()
        runner.run(client.close())


async def _client() -> TestClient:
    client: TestClient = TestClient(TestServer(make_app(FakeOperator(), AdminConfig(port=0))))
    await client.start_server()
    return client


async def _one(
    client: TestClient,
    operation: Operation,
    known: dict[str, Any],
    body: bytes | None,
    pool: str,
    query: dict[str, str],
    match: str | None,
    kind: str | None,
) -> None:
    headers = {name: value for name, value in (("If-Match", match), ("Content-Type", kind)) if value is not None}
    path = operation.path.replace("{pool}", pool)
    async with client.request(operation.method, path, params=query, data=body, headers=headers) as answer:
        status, text = str(answer.status), await answer.text()
        assert status in known, f"{status} is not documented: {text}"
        assert answer.content_type in known[status]["content"], answer.content_type
