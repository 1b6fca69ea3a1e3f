"""Who may look and who may turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from proxy.admin.server import make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator

WRITE, READ = "w" * 16, "r" * 16
PATH = "/admin/v1/pools/chat"


@pytest.fixture
async def guarded(operator: FakeOperator) -> AsyncIterator[TestClient]:
    config = AdminConfig(port=0, token=SecretStr(WRITE), read_token=SecretStr(READ))
    async with TestClient(TestServer(make_app(operator, config))) as client:
        yield client


@pytest.mark.parametrize(
    ("authorization", "read", "write"),
    [
        (None, 401, 401),
        ("", 401, 401),
        ("Bearer ", 401, 401),
        (f"Bearer {WRITE}x", 401, 401),
        (f"Basic {WRITE}", 401, 401),
        ("Bearer \udcff\udcfe", 401, 401),
        (f"Bearer {READ}", 200, 403),
        (f"Bearer {WRITE}", 200, 200),
        (f"bearer {WRITE}", 200, 200),
    ],
)
async def test_token_decides(guarded: TestClient, authorization: str | None, read: int, write: int) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with guarded.get(PATH, headers=headers) as answer:
        assert answer.status == read
        assert ("WWW-Authenticate" in answer.headers) == (read == 401)
    async with guarded.patch(f"{PATH}/slo", json={"ttft_ms": 5}, headers=headers) as answer:
        assert answer.status == write


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_and_scrapers_need_no_token(guarded: TestClient, path: str) -> None:
    async with guarded.get(path) as answer:
        assert answer.status == 200


async def test_an_unknown_path_is_not_told_to_strangers(guarded: TestClient) -> None:
    async with guarded.get("/admin/v1/nothing") as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8081"}, 200),
        ({"Host": "10.1.2.3:8081"}, 200),
        ({"Host": "rebound.example.test"}, 403),
        ({"Origin": "https://evil.example.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "127.0.0.1:8081", "Origin": "http://127.0.0.1:8081"}, 200),
    ],
)
async def test_without_a_token_web_pages_are_kept_out(api: TestClient, headers: dict[str, str], status: int) -> None:
    async with api.post("/admin/v1/reload", headers=headers) as answer:
        assert answer.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8081"}, 200),
        ({"Host": "[::1]:8081"}, 200),
        ({"Host": "rebound.example.test"}, 403),
        ({"Origin": "https://evil.example.test"}, 403),
    ],
)
async def test_without_a_token_no_web_page_reads_the_metrics(
    api: TestClient, headers: dict[str, str], status: int
) -> None:
    async with api.get("/metrics", headers=headers) as answer:
        assert answer.status == status
    async with api.get("/healthz", headers=headers) as answer:
        assert answer.status == 200
