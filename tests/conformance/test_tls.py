"""TLS towards clients and upstreams, over real sockets: who is believed, who is not, and nothing else changes."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import ssl
from typing import Any

import pytest

from proxy.config.certificates import server_context
from proxy.config.tls import ListenTlsConfig
from proxy.http.server import ServerLimits
from tests.support.certificates import Authority, Pair
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def of_server(pair: Pair, client_ca: str | None = None) -> ssl.SSLContext:
    return server_context(ListenTlsConfig(cert=pair.cert, key=pair.key, client_ca=client_ca))


def of_client(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.cert)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def upstream(up: MockUpstream, **tls: Any) -> dict[str, Any]:
    return {"url": up.url, "tls": tls} if tls else {"url": up.url}


@pytest.fixture
def server(authority: Authority) -> Pair:
    return authority.issue("server")


async def test_a_client_is_served_over_tls_and_the_upstream_hears_of_it(authority: Authority, server: Pair) -> None:
    async with MockUpstream() as up, Stack(up.url, listen={"tls": server._asdict()}) as stack:
        async with RawClient(stack.port, tls=of_client(authority)) as client:
            for _ in range(2):
                answer = await client.ask("POST", PATH, body=CHAT)
                assert (answer.status, answer.complete) == (200, True)
                assert up.seen[-1].header("x-forwarded-proto") == "https"
            assert client.writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
            streamed = await client.ask("POST", PATH, body={**CHAT, "stream": True})
            assert streamed.body.endswith(b"data: [DONE]\n\n")
        await stack.settled()


async def test_a_client_that_never_ends_its_handshake_is_cut_off(server: Pair) -> None:
    limits = ServerLimits(keepalive_timeout_s=0.05)
    async with MockUpstream() as up, Stack(up.url, listen={"tls": server._asdict()}, server_limits=limits) as stack:
        async with RawClient(stack.port) as client:
            client.send(b"\x16\x03\x01")
            assert await client.closed() == b""


async def test_plain_http_is_not_answered_where_tls_is_spoken(server: Pair) -> None:
    async with MockUpstream() as up, Stack(up.url, listen={"tls": server._asdict()}) as stack:
        async with RawClient(stack.port) as client:
            client.send(request_bytes("POST", PATH, body=CHAT))
            assert b"HTTP/" not in await client.closed()
        assert up.seen == []


async def test_large_bodies_pass_both_ways(authority: Authority, server: Pair) -> None:
    body = bytes(range(256)) * 16_384
    async with MockUpstream(tls=of_server(server)) as up:
        upstreams = [upstream(up, ca=authority.cert)]
        async with Stack(upstreams=upstreams, listen={"tls": server._asdict()}) as stack:
            async with RawClient(stack.port, tls=of_client(authority)) as client:
                answer = await client.ask("POST", "/any", body=body, mock={"echo": True}, timeout=30)
                assert answer.body == body
            await stack.settled()


async def test_a_client_without_a_certificate_is_turned_away_where_one_is_asked_for(
    authority: Authority, stranger: Authority, server: Pair
) -> None:
    tls = {**server._asdict(), "client_ca": authority.cert}
    async with MockUpstream() as up, Stack(up.url, listen={"tls": tls}) as stack:
        good = of_client(authority, authority.issue("client"))
        async with RawClient(stack.port, tls=good) as client:
            assert (await client.ask("POST", PATH, body=CHAT)).status == 200
        for bad in (of_client(authority), of_client(authority, stranger.issue("client"))):
            with pytest.raises((OSError, EOFError)):
                async with RawClient(stack.port, tls=bad) as client:
                    await client.ask("POST", PATH, body=CHAT)
        assert len(up.seen) == 1


async def test_an_upstream_that_its_authority_vouches_for_is_believed(authority: Authority, server: Pair) -> None:
    async with MockUpstream(tls=of_server(server)) as up:
        async with Stack(upstreams=[upstream(up, ca=authority.cert)]) as stack, RawClient(stack.port) as client:
            for _ in range(3):
                assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            assert up.connections == 1, "connections are kept"


@pytest.mark.parametrize("trusts", ["the system", "a stranger", "another name"])
async def test_an_upstream_that_nobody_vouches_for_gets_nothing(
    authority: Authority, stranger: Authority, server: Pair, trusts: str
) -> None:
    tls = {
        "the system": {},
        "a stranger": {"ca": stranger.cert},
        "another name": {"ca": authority.cert, "server_name": "elsewhere.test"},
    }[trusts]
    async with MockUpstream(tls=of_server(server)) as up:
        async with Stack(upstreams=[upstream(up, **tls)]) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", PATH, body=CHAT)
            assert answer.status == 502
            assert up.seen == []
            await stack.settled()


async def test_a_certificate_for_another_name_is_believed_when_that_is_the_name_to_expect(
    authority: Authority,
) -> None:
    async with MockUpstream(tls=of_server(authority.issue("inner", "DNS:inner.test"))) as up:
        tls = {"ca": authority.cert, "server_name": "inner.test"}
        async with Stack(upstreams=[upstream(up, **tls)]) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", PATH, body=CHAT)).status == 200


async def test_anybody_is_believed_only_where_that_was_asked_for(stranger: Authority) -> None:
    async with MockUpstream(tls=of_server(stranger.issue("server"))) as up:
        async with Stack(upstreams=[upstream(up, verify=False)]) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", PATH, body=CHAT)).status == 200


@pytest.mark.parametrize("shown", [True, False])
async def test_an_upstream_may_ask_who_we_are(authority: Authority, server: Pair, shown: bool) -> None:
    tls: dict[str, Any] = {"ca": authority.cert}
    if shown:
        tls |= authority.issue("proxy")._asdict()
    async with MockUpstream(tls=of_server(server, client_ca=authority.cert)) as up:
        async with Stack(upstreams=[upstream(up, **tls)]) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", PATH, body=CHAT)).status == (200 if shown else 502)
            assert len(up.seen) == shown
            await stack.settled()


async def test_a_client_that_leaves_over_tls_frees_the_upstream(authority: Authority, server: Pair) -> None:
    async with MockUpstream(tls=of_server(server)) as up:
        upstreams = [upstream(up, ca=authority.cert)]
        async with Stack(upstreams=upstreams, listen={"tls": server._asdict()}) as stack:
            async with RawClient(stack.port, tls=of_client(authority)) as client:
                client.send(request_bytes("POST", PATH, body={**CHAT, "stream": True}, mock={"gap": 30}))
                await client.head()
            await up.until(lambda: up.seen[-1].aborted_at is not None)
            await stack.settled()
