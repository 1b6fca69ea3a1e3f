"""Clients that take their time: bodies of a byte a second, crowds of operators, thousands that say nothing."""

from __future__ import annotations

import asyncio
import resource
import time

from benchmarks.bars import Bar
from benchmarks.hostile.around import Honest, Probed, server

__all__ = ["measure"]

_SLOW, _ADMIN, _IDLE = 2_000, 2_000, 10_000
_AT_ONCE = 200
"""Connections that are opened together: no more than the listener's queue holds."""
_MAX_ADMIN = 256
"""`admin.max_connections` by default."""


class _Crowd:
    """Many connections to one port."""

    def __init__(self) -> None:
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def come(self, port: int, count: int, words: bytes) -> None:
        """Open `count` connections that say `words`."""
        for start in range(0, count, _AT_ONCE):
            opened = await asyncio.gather(
                *[
                    asyncio.open_connection("127.0.0.1", port, limit=1024)
                    for _ in range(min(_AT_ONCE, count - start))
                ],
                return_exceptions=True,
            )
            for one in opened:
                if not isinstance(one, BaseException):
                    self._streams.append(one)
                    if words:
                        one[1].write(words)

    def say(self, words: bytes) -> None:
        """Have everybody who is still there say something."""
        for reader, writer in self._streams:
            if not reader.at_eof() and not writer.is_closing():
                writer.write(words)

    @property
    def there(self) -> int:
        """How many have not been closed by the other side."""
        return sum(not reader.at_eof() and not writer.is_closing() for reader, writer in self._streams)

    def leave(self) -> None:
        """Close all."""
        for _, writer in self._streams:
            writer.transport.abort()


def measure(quick: bool) -> list[Bar]:
    """Let all of them come at once; with `quick` their deadlines are two seconds, else the default minute."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 20_000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, hard), hard))
    limits = ("limits.body_timeout_s=2", "limits.keepalive_timeout_s=3", "limits.head_timeout_s=2") if quick else ()
    deadline_s = 3.0 if quick else 75.0
    with server() as upstream:
        with Probed(upstream) as proxy:
            idle = asyncio.run(_idle(proxy))
        with Probed(upstream, *limits) as proxy:
            return [
                *asyncio.run(_crowds(proxy, deadline_s)),
                Bar.below("memory of an idle connection, KB", idle, 4.0),
            ]


async def _idle(proxy: Probed) -> float:
    """Return what each of many idle connections takes, in KB."""
    crowd = _Crowd()
    await crowd.come(proxy.data, 500, b"")
    before = proxy.memory()
    await crowd.come(proxy.data, 5_000, b"")
    await asyncio.sleep(0.2)
    taken = (proxy.memory() - before) / 5_000 / 1e3
    crowd.leave()
    return taken


async def _crowds(proxy: Probed, deadline_s: float) -> list[Bar]:
    honest = Honest(proxy.data)
    slow, admin, idle = _Crowd(), _Crowd(), _Crowd()
    body = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{"
    await slow.come(proxy.data, _SLOW, body)
    await admin.come(proxy.admin, _ADMIN, b"GET /metrics HTTP/1.1\r\nHost: 127")
    await idle.come(proxy.data, _IDLE, b"")
    came = time.monotonic()
    while time.monotonic() < came + deadline_s + 2.0:
        slow.say(b" ")
        await asyncio.sleep(1.0)
    left = slow.there, idle.there, admin.there
    p99, asked, failures = await asyncio.to_thread(honest.stop)
    print(f"  an honest caller asked {asked} times; left are {left[0]} slow, {left[1]} idle, {left[2]} admin")
    for crowd in (slow, admin, idle):
        crowd.leave()
    most = _MAX_ADMIN if deadline_s < 10.0 else 0
    return [
        Bar.below("an honest caller's P99 among 2,000 slow bodies and 12,000 others, ms", p99, 50.0),
        Bar.below("its requests that failed", failures, 0),
        Bar.below("slow bodies left after their deadline", left[0], 0),
        Bar.below("idle connections left after their deadline", left[1], 0),
        Bar.below("admin connections left", left[2], most),
    ]
