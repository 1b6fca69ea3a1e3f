"""One worker as its leader knows it."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.observe.metrics import Dump
from proxy.workers.protocol import Channel

__all__ = ["Member"]


class Member:
    """One worker as the leader knows it."""

    def __init__(self, number: int, pid: int, channel: Channel) -> None:
        self.number = number
        self.pid = pid
        self.channel = channel
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.unready: list[str] = ["starting"]
        self.inside = 0
        self.dropped = 0
        self.heard = 0
        """Counts its messages."""
        self.dump: Dump = {}
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
