from __future__ import annotations

from tests.support.certificates import authority, stranger

__all__ = ["authority", "stranger"]
