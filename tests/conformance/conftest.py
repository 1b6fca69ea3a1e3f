"""The data plane is tested on the loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop

from tests.support.certificates import authority, stranger

__all__ = ["authority", "stranger"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
