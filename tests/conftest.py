"""What holds for the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from proxy.compiled import activate
from proxy.compiled.finder import VARIABLE

# From source, unless somebody asks for the compiled modules: what a machine happens to have compiled decides nothing.
os.environ.setdefault(VARIABLE, "0")
activate()

# How fast examples are made says something about the machine, and nothing about the product.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
