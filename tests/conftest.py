"""What holds for the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast examples are made says something about the machine, and nothing about the product.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
