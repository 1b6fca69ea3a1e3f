"""A merged call's lease comes back whatever becomes of the call."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

from policies.base import Job
from proxy.dispatch.merge import Batch
from proxy.dispatch.merged_call import MergeRun
from proxy.dispatch.trust import MergeTrust
from proxy.dispatch.turn import MergeTurn
from proxy.observe.hooks import ClosedBy
from proxy.request import Ticket
from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.lease import Ledger
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Call
from proxy.wire.openai import EMBEDDINGS, OpenAI


class Silent:
    """A group whose calls never come back."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        await asyncio.Event().wait()


class Failing(Silent):
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug")


def make(
    group: Any, count: int = 2, notify: Callable[[], None] = lambda: None
) -> tuple[MergeRun, list[MergeTurn], Ledger]:
    loop = asyncio.get_running_loop()
    address = Address.of("http://127.0.0.1:9")
    endpoint = Endpoint(address, ConnectionPool(loop, address, limit=1, idle_s=1.0))
    book = Ledger()
    turns = [
        MergeTurn(
            notify,
            Ticket(str(n), 0.0),
            Job(str(n), 0.0),
            Call(EMBEDDINGS, b"{}", payload={}, extra={"items": ["x"]}),
            Outgoing(b"POST", b"/", b""),
            OpenAI(),
            until=1e9,
            tokens=1.0,
            express=False,
        )
        for n in range(count)
    ]
    batch = Batch(list(turns), count, float(count), ClosedBy.FULL, 0)
    trust = MergeTrust([endpoint.name], lambda *said: None)
    run = MergeRun(group, OpenAI(), batch, turns, book.open(endpoint, 2.0), 1e9, trust, {}, "run-1")
    return run, turns, book


async def over(run: MergeRun) -> asyncio.Event:
    done = asyncio.Event()
    run.start(asyncio.get_running_loop(), lambda _: done.set())
    return done


async def test_when_everybody_leaves_before_its_first_step() -> None:
    group = Silent()
    run, turns, book = make(group)
    done = await over(run)
    for turn in turns:
        turn.gone = True
    run.member_gone()
    await asyncio.wait_for(done.wait(), 5)
    assert (book.leases, group.calls) == (0, 0)


async def test_when_everybody_leaves_during_it() -> None:
    group = Silent()
    run, turns, book = make(group)
    done = await over(run)
    await asyncio.sleep(0)
    turns[0].gone = True
    run.member_gone()
    await asyncio.sleep(0)
    assert (book.leases, group.calls) == (1, 1), "somebody still waits"
    turns[1].gone = True
    run.member_gone()
    await asyncio.wait_for(done.wait(), 5)
    assert book.leases == 0


async def test_when_the_proxy_itself_fails_everybody_is_told() -> None:
    run, turns, book = make(Failing())
    done = await over(run)
    await asyncio.wait_for(done.wait(), 5)
    assert book.leases == 0
    assert [turn.outcome.reason for turn in turns if turn.outcome] == ["internal_error"] * 2


async def test_what_is_over_is_let_go_without_the_collector() -> None:
    def notify() -> None:
        """Stands for the request that waits."""

    request = weakref.ref(notify)
    run, turns, _ = make(Silent(), notify=notify)
    done = await over(run)
    await asyncio.sleep(0)
    gc.disable()
    try:
        for turn in turns:
            turn.gone = True
        run.member_gone()
        await asyncio.wait_for(done.wait(), 5)
        del run, turns, turn, notify
        await asyncio.sleep(0)
        assert request() is None
    finally:
        gc.enable()
