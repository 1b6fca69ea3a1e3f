"""What a configuration may say, and what it means when it says little."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from proxy.config.model import POOL_KEYS, Config, PoolConfig, is_loopback

URL = "http://127.0.0.1:8000"


def config(**data: Any) -> Config:
    return Config.model_validate({"upstreams": [URL], **data})


def test_one_upstream_is_enough() -> None:
    (pool,) = config().pools
    assert pool.name == "default"
    assert [upstream.url for upstream in pool.upstreams] == [URL]
    assert pool.match.paths == ("*",)
    assert pool.match.models == ("*",)
    assert (pool.wire, pool.dispatch) == ("auto", "auto")
    assert list(pool.to_slo().targets()) == []


def test_pool_keys_at_the_top_make_the_default_pool() -> None:
    (pool,) = config(slo={"ttft_ms": 500}, depth=3, classes={"default": {}}).pools
    assert pool.to_slo() == SLO(ttft_s=0.5)
    assert pool.depth == 3


def test_pool_keys_beside_pools_are_refused() -> None:
    with pytest.raises(ValidationError):
        config(pools=[{"name": "a", "upstreams": [URL]}])


def test_pool_converts_to_the_controllers_terms() -> None:
    (pool,) = config(
        slo={"ttft_ms": 500, "tpot_ms": 50, "e2e_ms": 10_000, "queue_ms": 250, "quantile": 0.95},
        setpoints={"max_batch_size": {"initial": 4, "min": 2, "max": 8}, "window_ms": {"initial": 3, "max": 20}},
    ).pools
    assert pool.to_slo() == SLO(e2e_s=10.0, ttft_s=0.5, tpot_s=0.05, queue_s=0.25, quantile=0.95)
    assert pool.to_setpoints() == Setpoints(max_batch_size=4, window_ms=3.0, generation=0)
    assert pool.to_bounds() == Bounds(min_batch_size=2, max_batch_size=8, min_window_ms=0.0, max_window_ms=20.0)


@pytest.mark.parametrize(
    ("given", "initial"),
    [({}, 16), ({"max": 8}, 8), ({"min": 32}, 32), (4, 4), ("12", 12), ({"initial": 3}, 3)],
)
def test_initial_batch_size_is_brought_into_its_range_unless_given(given: object, initial: int) -> None:
    (pool,) = config(setpoints={"max_batch_size": given}).pools
    assert pool.setpoints.max_batch_size.initial == initial


def test_a_window_of_zero_is_allowed() -> None:
    (pool,) = config(setpoints={"window_ms": {"min": 0, "max": 0}}).pools
    assert pool.to_setpoints().window_ms == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"setpoints": {"window_ms": -1}},
        {"setpoints": {"window_ms": {"initial": 5, "min": 6}}},
        {"setpoints": {"max_batch_size": {"min": 9, "max": 8}}},
        {"setpoints": {"max_batch_size": 2.5}},
        {"slo": {"ttft_ms": 0}},
        {"slo": {"ttft_ms": float("nan")}},
        {"slo": {"ttft_ms": float("inf")}},
        {"slo": {"quantile": 1.0}},
        {"upstreams": []},
        {"upstreams": ["ftp://a"]},
        {"upstreams": [URL, URL + "/"]},
        {"upstreams": ["http://user:secret@a"]},
        {"upstreams": ["http://a:0"]},
        {"upstreams": ["http://a:99999"]},
        {"upstreams": ["http://a/?q=1"]},
        {"upstreams": ["http://a b:1"]},
        {"upstreams": ["http://a/x\r\nX-More: 1"]},
        {"upstreams": ["http://a/\xfc"]},
        {"upstreams": ["http://a..b:1"]},
        {"upstreams": ["http://${"]},
        {"upstreams": ["http://" + "a" * 300]},
        {"upstreams": ["http://[::1"]},
        {"classes": {"a b": {}}, "default_class": "a b"},
        {"classes": {"": {}}, "default_class": ""},
        {"match": {"paths": ["v1/*"]}},
        {"match": {"paths": [""]}},
        {"default_class": "nobody"},
        {"dispatch": "both"},
        {"surprise": 1},
        {"admin": {"host": "0.0.0.0"}},
        {"admin": {"read_token": "r" * 16}},
        {"admin": {"port": 8080}},
        {"pools": None},
    ],
)
def test_nonsense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**bad)


@pytest.mark.parametrize(
    "url", ["http://[::1]:8000", "http://a_b.default.svc.cluster.local.", "http://10.0.0.1:1/v1", "https://h/%C3%BC"]
)
def test_every_kind_of_address_is_an_upstream(url: str) -> None:
    assert config(upstreams=[url]).pools[0].upstreams[0].url == url


def test_two_pools_may_not_share_a_name() -> None:
    with pytest.raises(ValidationError, match="two pools are called 'a'"):
        Config.model_validate({"pools": [{"name": "a", "upstreams": [URL]}] * 2})


def test_pools_are_found_by_name() -> None:
    both = Config.model_validate({"pools": [{"name": name, "upstreams": [URL]} for name in ("a", "b")]})
    assert both.pool("b") is both.pools[1]
    with pytest.raises(KeyError):
        both.pool("c")


def test_nothing_can_be_changed_after_the_fact() -> None:
    with pytest.raises(ValidationError):
        config().listen.port = 1  # type: ignore[misc]


def test_admin_off_loopback_needs_a_token() -> None:
    assert config(admin={"host": "0.0.0.0", "token": "t" * 16}).admin.token is not None
    assert config(admin={"host": "::1"}).admin.token is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("::", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("example.test", False),
    ],
)
def test_loopback_is_recognised(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_secrets_do_not_print() -> None:
    text = repr(config(upstreams=[{"url": URL, "api_key": "very-secret"}], admin={"token": "t-secret-t-secret"}))
    assert "secret-" not in text.replace("SecretStr", "")
    assert "very-secret" not in text


def _sections(model: type[Any]) -> list[tuple[str, Any]]:
    return list(model.model_fields.items())


@pytest.mark.parametrize(
    "model",
    [
        Config,
        PoolConfig,
        *dict.fromkeys(
            type(f.default) for f in PoolConfig.model_fields.values() if hasattr(type(f.default), "model_fields")
        ),
    ],
)
def test_every_key_is_documented(model: type[Any]) -> None:
    for name, field in _sections(model):
        assert field.description, name
        assert field.description.endswith("."), name


def test_short_form_covers_every_pool_key_but_the_name() -> None:
    assert frozenset(PoolConfig.model_fields) - {"name"} == POOL_KEYS
    assert not POOL_KEYS & set(Config.model_fields)
