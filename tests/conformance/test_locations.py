"""Where an upstream says that something is at its own address, the client is led through the proxy."""

from __future__ import annotations

import pytest

from proxy.upstream.address import Address
from proxy.upstream.location import relocated
from tests.support.literal_upstream import LiteralUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PLAIN, PREFIXED = Address.of("http://gpu-1:8000"), Address.of("http://gpu-1:8000/base")


@pytest.mark.parametrize(
    ("place", "address", "led"),
    [
        ("http://gpu-1:8000/v1/models/", PLAIN, "/v1/models/"),
        ("https://GPU-1:8000/x?y=1#z", PLAIN, "/x?y=1#z"),
        ("http://gpu-1:8000", PLAIN, "/"),
        ("http://gpu-1:8000?x", PLAIN, "/?x"),
        ("http://gpu-1:8000//evil/x", PLAIN, "/.//evil/x"),
        ("http://gpu-1:80000/x", PLAIN, "http://gpu-1:80000/x"),
        ("http://gpu-1/x", PLAIN, "http://gpu-1/x"),
        ("https://login.example/x", PLAIN, "https://login.example/x"),
        ("/x", PLAIN, "/x"),
        ("x", PLAIN, "x"),
        ("//gpu-1:8000/x", PLAIN, "//gpu-1:8000/x"),
        ("http://gpu-1:8000/base/x", PREFIXED, "/x"),
        ("http://gpu-1:8000/base", PREFIXED, "/"),
        ("http://gpu-1:8000/basement", PREFIXED, "http://gpu-1:8000/basement"),
        ("/base/x", PREFIXED, "/x"),
        ("/other", PREFIXED, "/other"),
    ],
)
def test_only_what_names_the_upstream_is_made_relative(place: str, address: Address, led: str) -> None:
    for name in ("Location", "location", "Content-Location"):
        lines = f"A: http://gpu-1:8000/x\r\n{name}: {place}\r\nB: c\r\n".encode()
        assert relocated(lines, address) == f"A: http://gpu-1:8000/x\r\n{name}: {led}\r\nB: c\r\n".encode()


@pytest.mark.parametrize("status", [201, 301, 302, 303, 307, 308])
async def test_a_redirect_to_the_upstream_leads_through_the_proxy(status: int) -> None:
    """As frameworks answer to a path that lacks its last slash: with their Host, which is the upstream's."""
    script: dict[str, list[bytes]] = {}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        head = b"HTTP/1.1 %d X\r\nLocation: %b/there/?q=1\r\nContent-Length: 0\r\n\r\n" % (status, up.url.encode())
        script |= {"/there": [head], "/elsewhere": [head.replace(b"127.0.0.1", b"127.0.0.2")]}
        for method in ("GET", "POST", "HEAD"):
            for _ in range(2):
                assert (await client.ask(method, "/there")).header("location") == "/there/?q=1"
        assert (await client.ask("GET", "/elsewhere")).header(
            "location"
        ) == f"{up.url.replace('0.1', '0.2')}/there/?q=1"


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "deflate,chunked", "chunked, chunked"])
async def test_a_transfer_coding_that_would_be_lost_is_refused(coding: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    script = {"/a": [head + b"4\r\nmine\r\n0\r\n\r\n"]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/a")).status == 502
