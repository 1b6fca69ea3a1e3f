"""Keys of a whole proxy: a reload lets in and shuts out, and gives nobody its limits back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.access.keys import hash_key
from proxy.config.errors import ConfigError
from tests.proxy.app.upstream import Upstream


def keys(**limits: Any) -> list[dict[str, Any]]:
    return [{"name": name, "hash": hash_key(f"sk-the-key-of-{name}"), "limits": limits} for name in ("alice", "bob")]


async def test_a_reload_lets_in_and_shuts_out(upstream: Upstream, make_rig: Callable[..., Any]) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    alice = {"Authorization": "Bearer sk-the-key-of-alice"}
    rig.http.headers.update(alice)

    async def status() -> int:
        async with await rig.chat() as answer:
            return int(answer.status)

    assert await status() == 200
    rig.reload_to(upstreams=[upstream.url], keys=keys())
    done = await rig.admin_json("POST", "/admin/v1/reload")
    assert (done["changed"], done["restart_required"]) == (["keys"], [])
    assert await status() == 200
    rig.reload_to(upstreams=[upstream.url], keys=keys()[1:])
    await rig.proxy.reload()
    assert await status() == 401
    rig.reload_to(upstreams=[upstream.url])
    await rig.proxy.reload()
    assert await status() == 200


async def test_a_reload_gives_nobody_its_limits_back(upstream: Upstream, make_rig: Callable[..., Any]) -> None:
    limited = keys(requests_per_minute=1)
    rig = await make_rig(upstreams=[upstream.url], keys=limited)
    rig.http.headers.update({"x-api-key": "sk-the-key-of-alice"})
    for expected in (200, 429):
        async with await rig.chat() as answer:
            assert answer.status == expected
        rig.reload_to(upstreams=[upstream.url], keys=limited, drain={"grace_s": 0, "cap_s": 9})
        await rig.proxy.reload()


async def test_hashes_do_not_leave_by_the_admin_api(upstream: Upstream, make_rig: Callable[..., Any]) -> None:
    rig = await make_rig(upstreams=[upstream.url], keys=keys())
    shown = await rig.admin_json("GET", "/admin/v1/config")
    assert shown["config"]["keys"][0]["name"] == "alice"
    assert hash_key("sk-the-key-of-alice").removeprefix("sha256:") not in str(shown)


async def test_keys_that_are_not_valid_leave_the_old_ones(upstream: Upstream, make_rig: Callable[..., Any]) -> None:
    rig = await make_rig(upstreams=[upstream.url], keys=keys())
    rig.reload_to(upstreams=[upstream.url], keys=[*keys(), *keys()])
    with pytest.raises(ConfigError, match="two keys are called 'alice'"):
        await rig.proxy.reload()
    async with await rig.chat() as answer:
        assert answer.status == 401
