"""The house's one rule about imports, enforced: they run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
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
