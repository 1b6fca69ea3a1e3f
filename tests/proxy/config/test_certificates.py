"""Certificates in the configuration: what is said about those that cannot be used, and how they are renewed."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.app import Proxy
from proxy.cli.sockets import bind
from proxy.config.errors import ConfigError
from proxy.config.load import check
from proxy.config.model import Config
from proxy.config.source import Source
from tests.support.certificates import Authority, Pair


def config(**data: Any) -> Config:
    return check(Source({"pools": [{"upstreams": data.pop("upstreams", ["http://a:1"])}], **data}))


def refusal(**data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**data)
    return str(caught.value)


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Pair:
    """A certificate in files that the test may change."""
    made = authority.issue("server")
    return Pair(shutil.copy(made.cert, str(tmp_path / "a.pem")), shutil.copy(made.key, str(tmp_path / "a.key")))


def test_a_file_that_is_not_there_is_named(pair: Pair) -> None:
    said = refusal(listen={"tls": {"cert": "/nowhere/a.pem", "key": pair.key}})
    assert said == "listen.tls.cert: /nowhere/a.pem cannot be read: no such file or directory"


def test_a_key_of_another_certificate_is_named(authority: Authority, pair: Pair) -> None:
    other = authority.issue("other")
    said = refusal(listen={"tls": {"cert": pair.cert, "key": other.key}})
    assert said == f"listen.tls.key: {other.key} is not the private key of the certificate in {pair.cert}"


def test_files_in_each_others_place_are_named(pair: Pair) -> None:
    said = refusal(listen={"tls": {"cert": pair.key, "key": pair.cert}})
    assert said == f"listen.tls.cert: {pair.key} holds no PEM certificate"


def test_a_broken_certificate_is_named(pair: Pair, tmp_path: Path) -> None:
    text = Path(pair.cert).read_text()
    Path(pair.cert).write_text(text.replace(text[40:80], text[40:80].swapcase()))
    assert f"listen.tls.cert: {pair.cert} and {pair.key} cannot be used: " in refusal(listen={"tls": pair._asdict()})


def test_a_key_with_a_passphrase_does_not_make_it_ask(pair: Pair) -> None:
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", pair.key, "-out", pair.key + ".enc", "-passout", "pass:secret"],
        check=True, capture_output=True,
    )  # fmt: skip
    said = refusal(listen={"tls": {"cert": pair.cert, "key": pair.key + ".enc"}})
    assert "listen.tls.key: " in said
    assert "passphrase" in said


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ({"url": "http://a:1", "tls": {}}, "tls is set, but http://a:1 is not https"),
        ({"url": "https://a:1", "tls": {"cert": "x"}}, "cert and key need each other"),
        ({"url": "https://a:1", "tls": {"ca": "x", "verify": False}}, "ca is of no use where verify is false"),
        ({"url": "https://a:1", "tls": {"ca": "/nowhere"}}, "upstreams[0].tls.ca: /nowhere cannot be read"),
    ],
)
def test_mistakes_about_upstreams_are_named(upstream: dict[str, Any], words: str) -> None:
    assert words in refusal(upstreams=[upstream])


def test_what_is_right_is_accepted(authority: Authority, pair: Pair) -> None:
    tls = {"ca": authority.cert, **pair._asdict(), "server_name": "x.test"}
    made = config(upstreams=[{"url": "https://a:1", "tls": tls}], listen={"tls": pair._asdict()})
    assert made.listen.tls is not None


# -- renewal ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def proxy(data: dict[str, Any]) -> AsyncIterator[tuple[Proxy, int, int]]:
    """Run a proxy whose reloads read `data` again; yield it with its two ports."""
    running = Proxy(config(**data), reread=lambda: config(**data))
    sockets = [bind("127.0.0.1", 0, key="listen", flag="--port") for _ in range(2)]
    try:
        await running.start(*sockets)
        yield running, sockets[0].getsockname()[1], sockets[1].getsockname()[1]
    finally:
        await running.stop()


async def shown_name(port: int, authority: Authority) -> str:
    """Return the common name in the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=authority.cert)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    return str(dict(part[0] for part in subject)["commonName"])


def replace(pair: Pair, fresh: Pair) -> None:
    shutil.copy(fresh.cert, pair.cert)
    shutil.copy(fresh.key, pair.key)


async def test_a_reload_shows_new_connections_the_new_certificate(authority: Authority, pair: Pair) -> None:
    async with proxy({"listen": {"tls": pair._asdict()}}) as (running, port, _):
        assert await shown_name(port, authority) == "server"
        replace(pair, authority.issue("renewed"))
        assert await shown_name(port, authority) == "server", "not before it is asked to"
        done = await running.reload()
        assert await shown_name(port, authority) == "renewed"
        assert done.restart_required == ()


async def test_the_admin_api_speaks_tls_where_it_is_told_to(authority: Authority, pair: Pair) -> None:
    async with proxy({"admin": {"tls": pair._asdict()}}) as (running, _, port):
        url = f"https://127.0.0.1:{port}"
        context = ssl.create_default_context(cafile=authority.cert)

        def names() -> Any:
            with urllib.request.urlopen(f"{url}/admin/v1/pools", context=context, timeout=10) as answer:
                return [pool["name"] for pool in json.load(answer)["pools"]]

        assert await asyncio.to_thread(names) == ["default"]
        replace(pair, authority.issue("renewed"))
        await running.reload()
        assert await shown_name(port, authority) == "renewed"


def test_the_admin_apis_files_are_checked_as_well(pair: Pair) -> None:
    said = refusal(admin={"tls": {"cert": pair.cert, "key": "/nowhere"}})
    assert said == "admin.tls.key: /nowhere cannot be read: no such file or directory"


async def test_a_reload_with_a_key_that_does_not_fit_changes_nothing(authority: Authority, pair: Pair) -> None:
    async with proxy({"listen": {"tls": pair._asdict()}}) as (running, port, _):
        shutil.copy(authority.issue("renewed").key, pair.key)
        with pytest.raises(ConfigError, match="is not the private key"):
            await running.reload()
        assert running.generation == 1
        assert await shown_name(port, authority) == "server"


async def test_a_reload_takes_up_new_files_of_upstreams_and_leaves_other_pools_alone(
    authority: Authority, pair: Pair
) -> None:
    upstream = {"url": "https://127.0.0.1:1", "tls": {"ca": authority.cert, **pair._asdict()}}
    async with proxy({"upstreams": [upstream]}) as (running, _, _):
        first = running.pools["default"]
        await running.reload()
        assert running.pools["default"] is first, "nothing changed"
        replace(pair, authority.issue("renewed"))
        await running.reload()
        assert running.pools["default"] is not first
        assert running.pools["default"].controller is first.controller, "what was learned stays"
