"""The configuration for eyes and editors."""

from __future__ import annotations

from typing import Any

import yaml

from proxy.config.load import load
from proxy.config.model import Config
from proxy.config.show import MASK, as_data, as_yaml, json_schema

URL = "http://127.0.0.1:8000"


def test_what_is_shown_can_be_read_back() -> None:
    config = Config.model_validate({"upstreams": [URL], "slo": {"ttft_ms": 500}})
    assert Config.model_validate(yaml.safe_load(as_yaml(config))) == config


def test_secrets_are_masked() -> None:
    environ = {"TRIMTAB_UPSTREAMS": f"[{{url: '{URL}', api_key: sk-abcdef}}]", "TRIMTAB_ADMIN__TOKEN": "t" * 16}
    data = as_data(load(None, environ=environ))
    assert data["admin"]["token"] == MASK
    assert data["pools"][0]["upstreams"][0]["api_key"] == MASK
    assert "sk-abcdef" not in as_yaml(load(None, environ=environ))


def test_schema_knows_every_key_with_its_range() -> None:
    schema = json_schema()
    assert schema["$defs"]["SloConfig"]["additionalProperties"] is False
    assert schema["properties"]["listen"]["$ref"] == "#/$defs/ListenConfig"
    port = schema["$defs"]["ListenConfig"]["properties"]["port"]
    assert (port["minimum"], port["maximum"], bool(port["description"])) == (0, 65_535, True)


def test_schema_admits_the_short_form() -> None:
    schema = json_schema()
    assert {"upstreams", "slo", "setpoints", "law"} <= set(schema["properties"])
    assert schema["anyOf"] == [{"required": ["pools"]}, {"required": ["upstreams"]}]
    assert schema["$defs"]["UpstreamConfig"]["anyOf"][0]["type"] == "string"
    assert schema["$defs"]["WindowRange"]["anyOf"][0]["type"] == "number"


def test_every_reference_in_the_schema_resolves() -> None:
    schema = json_schema()

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + [found for value in node.values() for found in references(value)]
        return [found for value in node for found in references(value)] if isinstance(node, list) else []

    assert {found.removeprefix("#/$defs/") for found in references(schema)} <= set(schema["$defs"])
