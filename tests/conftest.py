"""What holds for the whole suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from proxy.compiled import activate
from proxy.compiled.finder import VARIABLE

# From source, unless somebody asks for the compiled modules: what a machine happens to have compiled decides nothing.
os.environ.setdefault(VARIABLE, "0")
activate()

# How fast examples are made says something about the machine, and nothing about the product.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_FIRST = ("tests/proxy/compiled/test_process.py",)
"""Files that take minutes: with several processes these start at once, and the others run meanwhile."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
