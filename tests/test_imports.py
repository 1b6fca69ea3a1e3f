"""The house's one rule about imports, enforced: they run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "policies": set(),
    "controller": {"policies"},
    "proxy": {"policies", "controller"},
    "backend": {"policies"},
}
CORE_OF_THE_ENGINE = ("backend/engine", "backend/attention", "backend/models")
ENGINE_LIBRARIES = {"torch", "numpy", "safetensors", "tokenizers", "triton"}
HEAVY = ("torch", "numpy", "sklearn", "scipy", "transformers", "backend")


def imported_names(path: Path) -> set[str]:
    """Top-level names that a file imports anywhere, lazily included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_packages_import_one_way(package: str) -> None:
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    for path in sorted((ROOT / package).rglob("*.py")):
        assert not imported_names(path) & forbidden, f"{path.relative_to(ROOT)} imports against the grain"


def test_policies_import_only_the_standard_library() -> None:
    """And the marker, without any code, that tells the compiler which classes others extend."""
    for path in sorted((ROOT / "policies").rglob("*.py")):
        foreign = imported_names(path) - set(sys.stdlib_module_names) - {"policies", "mypy_extensions"}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


@pytest.mark.parametrize("folder", CORE_OF_THE_ENGINE)
def test_the_engine_core_needs_torch_and_little_else(folder: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"backend", "policies"} | ENGINE_LIBRARIES
    for path in sorted((ROOT / folder).rglob("*.py")):
        foreign = imported_names(path) - allowed
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_nothing_shipped_imports_tests_or_benchmarks() -> None:
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            assert not imported_names(path) & {"tests", "benchmarks"}, path.relative_to(ROOT)


@pytest.mark.parametrize("module", ["proxy", "proxy.app", "proxy.cli"])
def test_importing_the_proxy_stays_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# -- rooms and circles -------------------------------------------------------------------------------------------

FLOORS = {
    "proxy": (
        ("cli",),
        ("workers",),
        ("run",),
        ("app",),
        ("process",),
        ("plane",),
        ("control",),
        ("admin",),
        ("serving",),
        ("state",),
        ("dispatch",),
        ("upstream",),
        ("access",),
        ("observe",),
        ("http",),
        ("pool_view",),
        ("outcome",),
        ("request",),
        ("config",),
        ("wire",),
        ("compiled",),
        ("aside", "clock", "now", "trace"),
    ),
    "controller": (
        ("simulator",),
        ("replay", "shared"),
        ("loop",),
        ("by_mode",),
        ("base", "journal"),
        ("tune",),
        ("dispatch",),
        ("models",),
        ("laws",),
        ("measure",),
        ("predictor",),
        ("decision", "load", "observation", "setpoints", "slo", "verdict"),
    ),
}
"""Rooms of a package (folders, and files at its root), top floor first: each knows those below, and none above."""
LONG = {
    "proxy/upstream/connection.py": "one state machine over one socket, which a split would only scatter",
    "proxy/dispatch/pool.py": "to be divided",
    "proxy/http/protocol.py": "all states of one client connection, which aiohttp keeps in one object as well",
    "proxy/upstream/exchange.py": "to be divided",
    "proxy/upstream/group.py": "to be divided",
}
"""Files above 400 lines, and why."""
MAX_LINES = 400


@cache
def imported_modules() -> dict[str, set[str]]:
    """For each of our modules those of ours that it imports, lazily and for types included."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in MAY_IMPORT
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names.update(name if name in files else node.module for name in inner)
        found[module] = {name for name in names if name in files} - {module}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other in a circle."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for name in graph[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        reached[start] = seen
    found: list[set[str]] = []
    for module in graph:
        if module in reached[module] and not any(module in each for each in found):
            found.append({other for other in reached[module] if module in reached[other]})
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]
    assert circles(imported_modules()) == []


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_rooms_import_only_downwards(package: str) -> None:
    floor = {room: index for index, rooms in enumerate(FLOORS[package]) for room in rooms}

    def room(module: str) -> str:
        return module.split(".")[1]

    graph = {
        module: {name for name in names if name.startswith(f"{package}.")}
        for module, names in imported_modules().items()
        if module.startswith(f"{package}.")
    }
    assert {room(module) for module in graph} == set(floor), "each room has its floor"
    wrong = {
        f"{module} imports {name}"
        for module, names in graph.items()
        for name in names
        if room(module) != room(name) and floor[room(name)] <= floor[room(module)]
    }
    assert wrong == set()


def test_the_root_of_the_proxy_stays_small() -> None:
    assert len(list((ROOT / "proxy").glob("*.py"))) <= 12


def test_long_files_are_named_with_their_reason() -> None:
    long = {
        str(path.relative_to(ROOT))
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("*.py")
        if len(path.read_text().splitlines()) > MAX_LINES
    }
    assert long == set(LONG), "divide what has grown, and strike what has shrunk"
