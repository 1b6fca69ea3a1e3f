"""Every name of aiohttp's that it does not promise to keep is on the list that is checked at the start."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

from proxy.config.errors import ConfigError
from proxy.http import aiohttp_names
from proxy.http.aiohttp_names import HANDLER, PROTOCOL, SERVER, check, missing

ROOT = Path(__file__).resolve().parents[3]


async def nobody(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError(request)


def private_names(path: Path) -> set[str]:
    """Private attributes that a file uses and does not make itself."""
    tree = ast.parse(path.read_text())
    used, made = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            used.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            made.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            made |= set(ast.literal_eval(node.value))
    return used - made


async def test_the_installed_library_has_them_all() -> None:
    server = web.Server(nobody)
    assert missing(server) == []
    check(server)
    await server.shutdown(0.001)


async def test_one_that_lacks_a_name_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_names, "HANDLER", (*HANDLER, "_gone"))
    monkeypatch.setattr(aiohttp_names, "SERVER", (*SERVER, "_too"))
    server = web.Server(nobody)
    with pytest.raises(
        ConfigError, match=r"^aiohttp: version \S+ lacks RequestHandler\._gone, Server\._too; install"
    ):
        check(server)
    await server.shutdown(0.001)


@pytest.mark.parametrize("file", ["protocol.py", "server.py", "doorstep.py", "incoming.py"])
def test_nothing_else_of_it_is_used(file: str) -> None:
    """What is aiohttp's and private is on a list; what is neither on one nor aiohttp's is our own."""
    theirs = {name for kind in (RequestHandler, BaseProtocol) for name in dir(kind)} | {"_connections", "_kwargs"}
    listed = {*HANDLER, *PROTOCOL, *SERVER}
    assert (private_names(ROOT / "proxy" / "http" / file) & theirs) - listed == set()
    for node in ast.walk(ast.parse((ROOT / "proxy" / "http" / file).read_text())):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "RequestHandler" for base in node.bases):
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
            overridden = {name for name in methods if name.startswith("_") and name in theirs} - {"__init__"}
            assert overridden <= listed
