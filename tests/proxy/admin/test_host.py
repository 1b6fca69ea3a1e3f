"""A Host that is none is the caller's mistake, on the admin listener too."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestClient


@pytest.mark.parametrize(
    "head",
    [
        b"GET /admin/v1/pools HTTP/1.1\r\nHost: [::1\r\n",
        b"GET /admin/v1/pools HTTP/1.1\r\nHost: user@127.0.0.1\r\n",
        b"GET /admin/v1/pools HTTP/1.1\r\nHost: 127.0.0.1:x\r\n",
        b"GET /admin/v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n",
        b"GET /admin/v1/pools HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: [\r\n",
        b"GET http://evil/admin/v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    ],
)
async def test_a_host_that_is_none_is_400(api: TestClient, head: bytes) -> None:
    reader, writer = await asyncio.open_connection(api.host, api.port)
    writer.write(head + b"Connection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    assert b" 400 " in answer[:20], answer


async def test_an_origin_that_is_none_is_403(api: TestClient) -> None:
    answer = await api.get("/admin/v1/pools", headers={"Origin": "http://[::1"})
    assert answer.status == 403
