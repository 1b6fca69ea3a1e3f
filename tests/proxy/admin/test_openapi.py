"""The document says what the server does."""

from __future__ import annotations

from typing import Any

from aiohttp.test_utils import TestClient

from proxy.admin.openapi import OPERATIONS, document
from proxy.admin.pages import is_page
from proxy.admin.server import GROUPS, make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator


async def test_it_is_served(api: TestClient) -> None:
    async with api.get("/admin/v1/openapi.json") as answer:
        assert await answer.json() == document()


def test_every_route_is_documented_and_every_documented_route_exists(operator: FakeOperator) -> None:
    app = make_app(operator, AdminConfig())
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource and route.method != "HEAD" and not is_page(route.resource.canonical)
    }
    documented = {
        (method, path) for path, item in document()["paths"].items() for method in item if method != "parameters"
    }
    assert routes == documented


def test_every_operation_is_implemented() -> None:
    for operation in OPERATIONS:
        owners = [group for group in GROUPS if hasattr(group, operation.handler)]
        assert len(owners) == (0 if operation.handler == "openapi" else 1), operation.handler


def test_operation_ids_are_unique_and_everything_is_described() -> None:
    ids = []
    for item in document()["paths"].values():
        for method, operation in item.items():
            if method == "parameters":
                continue
            ids.append(operation["operationId"])
            assert operation["summary"].endswith(".")
            assert all(parameter["description"] for parameter in operation.get("parameters", ()))
    assert len(ids) == len(set(ids))


def test_every_reference_resolves() -> None:
    whole = document()

    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(value) for value in node.values()))
        return set().union(*map(references, node)) if isinstance(node, list) else set()

    names = {reference.removeprefix("#/components/schemas/") for reference in references(whole)}
    assert names <= set(whole["components"]["schemas"])


def test_inputs_are_closed_and_bounded() -> None:
    schemas = document()["components"]["schemas"]
    for name in ("SloPatch", "SetpointsPatch", "LawIn", "FreezeIn", "ShadowIn", "RollbackIn"):
        assert schemas[name]["additionalProperties"] is False
