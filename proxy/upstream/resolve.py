"""From a host's name to the addresses to connect to, afresh for every connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from random import randrange
from typing import TypeAlias

__all__ = ["Resolve", "is_address", "lookup", "spread"]

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, in order of preference. Raises OSError."""


def is_address(host: str) -> bool:
    """Whether `host` is an address already."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def lookup(host: str, port: int) -> Sequence[str]:
    """Ask the system. Its own caches apply; we keep none, so that a name that moved is followed at once."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in found))


def spread(addresses: Sequence[str], pick: Callable[[int], int] = randrange) -> list[str]:
    """Return `addresses` with those of the preferred family first, beginning anywhere among them.

    A name that stands for many servers is spread over them, as a headless Service of Kubernetes wants it.
    """
    if len(addresses) < 2:
        return list(addresses)
    six = ":" in addresses[0]
    first = [address for address in addresses if (":" in address) is six]
    start = pick(len(first))
    return [*first[start:], *first[:start], *(address for address in addresses if (":" in address) is not six)]
