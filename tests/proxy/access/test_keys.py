"""Who may be what: keys, classes and what a request may say about itself."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from proxy.access.keys import Keyring, class_ladder, credentials, hash_key
from proxy.cli import main
from proxy.config.errors import ConfigError
from proxy.config.load import check
from proxy.config.model import Config
from proxy.config.show import MASK, as_yaml
from proxy.config.source import read_text
from proxy.http.request_fields import RequestFields

SECRET = "sk-of-our-first-customer"
CLASSES = {
    "urgent": {"slack_ms": 0, "express": True},
    "plain": {"slack_ms": 0},
    "default": {"slack_ms": 1_000},
    "batch": {"slack_ms": 30_000},
}


def config(*keys: dict[str, Any], **rest: Any) -> Config:
    made = [{"name": f"k{n}", "hash": hash_key(f"{SECRET}-{n}"), **key} for n, key in enumerate(keys)]
    return Config.model_validate({"upstreams": ["http://a:1"], "classes": CLASSES, "keys": made, **rest})


def ladder(**key: Any) -> tuple[str, dict[str, str]]:
    made = config(key)
    return class_ladder(made.keys[0], made.pools[0].classes, made.pools[0].default_class)


@pytest.mark.parametrize(
    ("key", "default", "given"),
    [
        ({}, "default", {"urgent": "default", "plain": "default", "default": "default", "batch": "batch"}),
        ({"ceiling": "plain"}, "default", {"urgent": "plain", "plain": "plain", "batch": "batch"}),
        ({"ceiling": "urgent"}, "default", {"urgent": "urgent", "plain": "plain"}),
        ({"trust_headers": True}, "default", {"urgent": "urgent", "batch": "batch"}),
        ({"trust_headers": True, "ceiling": "batch"}, "batch", {"urgent": "batch", "default": "batch"}),
        ({"default_class": "batch"}, "batch", {"urgent": "batch", "default": "batch", "batch": "batch"}),
        ({"classes": ["plain", "batch"]}, "batch", {"urgent": "plain", "default": "batch", "batch": "batch"}),
        ({"classes": ["urgent"], "default_class": "urgent"}, "urgent", {"plain": "urgent", "batch": "urgent"}),
        ({"ceiling": "plain", "default_class": "urgent"}, "urgent", {"urgent": "plain", "plain": "plain"}),
    ],
)
def test_a_class_above_the_ceiling_falls_to_the_ceiling(
    key: dict[str, Any], default: str, given: dict[str, str]
) -> None:
    found, steps = ladder(**key)
    assert found == default
    assert {name: steps[name] for name in given} == given


def test_a_ceiling_that_a_pool_does_not_know_lets_nobody_above_the_pools_default() -> None:
    key = config({"ceiling": "plain"}).keys[0]
    classes = {name: klass for name, klass in config().pools[0].classes.items() if name != "plain"}
    assert class_ladder(key, classes, "default")[1]["urgent"] == "default"


def fields(*headers: tuple[str, str]) -> RequestFields:
    return RequestFields([(name.encode(), value.encode()) for name, value in headers])


def test_a_key_is_looked_for_in_three_fields() -> None:
    shown = fields(
        ("Authorization", "bEaReR  one "), ("X-Api-Key", "two"), ("api-key", "three"), ("Cookie", "four"),
        ("authorization", "Basic five"),
    )  # fmt: skip
    assert [key for _, key in credentials(shown)] == [b"one", b"two", b"three"]


def test_a_reload_keeps_what_was_used_up_unless_the_limits_changed() -> None:
    limits = {"requests_per_minute": 60, "burst": 1}

    def admit(ring: Keyring) -> object:
        (caller,) = ring._callers.values()
        return caller.allowance.admit(0.0, 0.0)

    first = Keyring(config({"limits": limits}).keys, now=0.0)
    assert admit(first) is None
    second = Keyring(config({"limits": limits, "tenant": "other"}).keys, now=0.0, before=first)
    assert admit(second) is not None
    third = Keyring(config({"limits": {**limits, "burst": 2}}).keys, now=0.0, before=second)
    assert admit(third) is None


@pytest.mark.parametrize("prefix", ["", "sha256:"])
def test_a_hash_may_say_its_kind_or_not(prefix: str) -> None:
    plain = hash_key(SECRET).removeprefix("sha256:")
    assert (
        config({"hash": prefix + plain.upper()} if not prefix else {"hash": prefix + plain}).keys[0].digest.hex()
        == plain
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([{"hash": SECRET}], "`trimtab config hash-key` prints it"),
        ([{"name": "a"}, {"name": "a"}], "two keys are called 'a'"),
        ([{"hash": "0" * 64}, {"hash": "0" * 64}], "'k0' and 'k1' have the same hash"),
        ([{"classes": ["batch"], "ceiling": "plain"}], "ceiling 'plain' is not one of its classes: batch"),
        ([{"limits": {"burst": 3}}], "burst only makes sense beside requests_per_minute"),
        ([{"limits": {"burst_tokens": 3}}], "burst_tokens only makes sense beside tokens_per_minute"),
    ],
)
def test_mistakes_are_named(keys: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(*keys)


def test_a_key_given_instead_of_its_hash_is_not_repeated_and_its_line_is_named() -> None:
    text = f"upstreams: [http://a:1]\nkeys:\n  - name: a\n    hash: {SECRET}\n"
    with pytest.raises(ConfigError) as caught:
        check(read_text(text, "t.yaml", {}))
    assert str(caught.value).startswith("t.yaml:4: keys[0].hash: must be the SHA-256")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("field", ["ceiling: gold", "default_class: gold", "classes: [gold]"])
def test_a_class_that_no_pool_has_is_named(field: str) -> None:
    text = f"upstreams: [http://a:1]\nkeys:\n  - name: a\n    hash: {'ab' * 32}\n    {field}\n"
    with pytest.raises(ConfigError, match=r"t.yaml:5: keys\[0\].*got 'gold'; accepted: interactive, default, batch"):
        check(read_text(text, "t.yaml", {}))


def test_hashes_are_not_shown() -> None:
    shown = as_yaml(config({}))
    assert MASK in shown
    assert hash_key(f"{SECRET}-0").removeprefix("sha256:") not in shown


def test_the_hash_of_a_key_is_printed_and_the_key_is_not() -> None:
    done = CliRunner().invoke(main, ["config", "hash-key"], input=f"{SECRET}\n")
    assert (done.exit_code, done.output) == (0, f"{hash_key(SECRET)}\n")


@pytest.mark.parametrize("key", ["", "short", "two words of some length", "schlüssel-zum-erfolg"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    done = CliRunner().invoke(main, ["config", "hash-key"], input=f"{key}\n")
    assert done.exit_code == 2
    assert "a key" in done.stderr
