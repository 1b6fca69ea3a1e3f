"""After an upgrade: every byte in both directions, no faster than the other side takes it, until one side closes."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.http.tunnel import Tunnel


class Line(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.closed = ""
        self.reading = True
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.out += bytes(data)

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Client:
    writing_paused = False

    def __init__(self) -> None:
        self.parser: Any = None
        self.drained = asyncio.Event()

    def set_parser(self, parser: Any) -> None:
        self.parser = parser

    async def drain(self) -> None:
        await self.drained.wait()
        self.writing_paused = False


class Scene:
    """A tunnel with both its sides, and the task that waits for its end."""

    def __init__(self, rest: bytes = b"") -> None:
        self.client, self.down, self.up = Client(), Line(), Line()
        self.tunnel = Tunnel(asyncio.get_running_loop(), self.client, self.down, self.up)
        self.tunnel.start(rest)
        self.run = asyncio.ensure_future(self.tunnel.run(self.client.drain))

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.tunnel.connection_lost(None)
        await self.run


async def test_what_had_come_already_goes_first() -> None:
    scene = Scene(b"early ")
    scene.up.protocol.data_received(b"late")
    assert scene.down.out == b"early late"
    await scene.close()


async def test_both_directions_pass_at_once() -> None:
    scene = Scene()
    assert scene.client.parser.feed_data(b"up") == (False, b"")
    scene.up.protocol.data_received(b"down")
    assert (scene.up.out, scene.down.out) == (b"up", b"down")
    await scene.close()


async def test_a_slow_client_stops_the_upstream_until_it_has_drained() -> None:
    scene = Scene()
    await scene.turn()
    scene.client.writing_paused = True
    scene.up.protocol.data_received(b"much")
    assert not scene.up.reading
    await scene.turn()
    assert not scene.up.reading
    scene.client.drained.set()
    await scene.turn()
    assert scene.up.reading
    await scene.close()


async def test_a_slow_upstream_stops_the_client() -> None:
    scene = Scene()
    scene.up.protocol.pause_writing()
    assert not scene.down.reading
    scene.up.protocol.resume_writing()
    assert scene.down.reading
    await scene.close()


async def test_the_upstream_closes_and_so_does_the_clients_side_behind_the_last_byte() -> None:
    scene = Scene()
    scene.up.protocol.data_received(b"bye")
    assert not scene.up.protocol.eof_received()
    scene.up.protocol.connection_lost(None)
    await scene.run
    assert (scene.down.out, scene.down.closed) == (b"bye", "closed")
    assert scene.client.parser.feed_data(b"too late") == (True, b"")


async def test_whoever_gives_it_up_closes_the_upstreams_side_at_once() -> None:
    scene = Scene()
    scene.tunnel.abort()
    assert scene.up.closed == "aborted"
    scene.client.parser.feed_data(b"nobody reads this")
    assert scene.up.out == b""
    scene.run.cancel()


async def test_nothing_is_written_to_a_client_that_has_left() -> None:
    scene = Scene()
    scene.down.close()
    scene.up.protocol.data_received(b"late")
    assert scene.down.out == b""
    await scene.close()
