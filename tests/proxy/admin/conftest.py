from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from proxy.admin.server import make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
async def api(operator: FakeOperator) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(operator, AdminConfig(port=0)))) as client:
        yield client
