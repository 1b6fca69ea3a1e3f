"""No interpreted class extends a compiled one that is not marked for it: that is a TypeError where it is compiled."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

from proxy.compiled.modules import MODULES, PACKAGES

ROOT = Path(__file__).parents[3]


def marked() -> set[tuple[str, str]]:
    """Classes of compiled modules that interpreted ones may extend."""
    found = set()
    for module in MODULES:
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(
                "allow_interpreted_subclasses=True" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                found.add((module, node.name))
    return found


def test_every_compiled_class_that_interpreted_ones_extend_is_marked() -> None:
    may_be_extended = marked()
    wrong = set()
    for package in PACKAGES:
        for info in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if info.name in MODULES or info.name.endswith("__main__") or info.name.endswith("mypyc_script"):
                continue
            for _, kind in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
                if kind.__module__ != info.name:
                    continue
                wrong |= {
                    f"{info.name}.{kind.__name__} extends {base.__module__}.{base.__name__}"
                    for base in kind.__mro__[1:]
                    if base.__module__ in MODULES and (base.__module__, base.__name__) not in may_be_extended
                    if not any(other.__module__ in MODULES for other in kind.__mro__[1 : kind.__mro__.index(base)])
                }
    assert not wrong
