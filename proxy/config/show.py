"""The configuration for eyes and editors: the effective values with secrets masked, and a JSON Schema."""

from __future__ import annotations

import re
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from proxy.config.model import POOL_KEYS, Config

__all__ = ["MASK", "as_data", "as_yaml", "json_schema", "revealed"]

_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
MASK = "**********"
"""Stands for a secret that is set."""


def as_data(config: Config) -> dict[str, Any]:
    """Return every value in force, JSON-ready, secrets masked."""
    shown: dict[str, Any] = _without_passwords(config.model_dump(mode="json"))
    return shown


def _without_passwords(value: Any) -> Any:
    """Mask what stands before the host in URLs (RFC 3986 section 3.2.1): credentials, as a rule."""
    if isinstance(value, str):
        return _USERINFO.sub(rf"\1{MASK}@", value) if "@" in value else value
    if isinstance(value, dict):
        return {key: _without_passwords(part) for key, part in value.items()}
    return [_without_passwords(part) for part in value] if isinstance(value, list) else value


def revealed(value: Any) -> Any:
    """Return a configuration, or a part of one, JSON-ready and with its secrets: only for another process of ours."""
    if isinstance(value, BaseModel):
        return {name: revealed(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: revealed(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [revealed(part) for part in value]
    return value


def as_yaml(config: Config) -> str:
    """Return every value in force as YAML that `trimtab` reads (but for masked secrets)."""
    return yaml.safe_dump(as_data(config), sort_keys=False, allow_unicode=True, width=110)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file, the short form included."""
    schema = Config.model_json_schema(mode="validation")
    pool = schema["$defs"]["PoolConfig"]
    schema["properties"] |= {key: pool["properties"][key] for key in pool["properties"] if key in POOL_KEYS}
    schema["required"] = [key for key in schema.get("required", []) if key != "pools"]
    schema["anyOf"] = [{"required": ["pools"]}, {"required": ["upstreams"]}]
    _allow_short_forms(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trimtab configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _allow_short_forms(schema: dict[str, Any]) -> None:
    """Admit what validators expand: a URL for an upstream, a number for a range, one string for upstreams."""
    definitions = schema["$defs"]
    definitions["UpstreamConfig"] = {"anyOf": [{"type": "string", "format": "uri"}, definitions["UpstreamConfig"]]}
    for name, kind in (("BatchSizeRange", "integer"), ("WindowRange", "number")):
        definitions[name] = {"anyOf": [{"type": kind, "minimum": 0}, definitions[name]]}
