"""Many sources, one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from backend.api.generation import fan_in


class Source:
    """Yields `items`, then waits for ever if `endless`; remembers that it was closed."""

    def __init__(self, items: list[int], *, endless: bool = False, error: Exception | None = None) -> None:
        self.items, self.endless, self.error = items, endless, error
        self.closed = False

    async def run(self) -> AsyncIterator[int]:
        try:
            for item in self.items:
                yield item
            if self.error is not None:
                raise self.error
            if self.endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_everything_arrives_in_the_order_of_its_source(count: int) -> None:
    sources = [Source(list(range(20 * i, 20 * i + 9))) for i in range(count)]
    got: dict[int, list[int]] = {i: [] for i in range(count)}
    async for position, item in fan_in([source.run() for source in sources]):
        got[position].append(item)
    assert got == {i: source.items for i, source in enumerate(sources)}
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_every_source(count: int) -> None:
    sources = [Source([1, 2, 3], endless=True) for _ in range(count)]
    async with aclosing(fan_in([source.run() for source in sources])) as merged:
        async for _ in merged:
            break
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_an_error_in_one_source_reaches_the_consumer_and_closes_the_others(count: int) -> None:
    sources = [Source([1], error=ValueError("broken"))]
    sources += [Source([1], endless=True) for _ in range(count - 1)]
    with pytest.raises(ValueError, match="broken"):
        async for _ in fan_in([source.run() for source in sources]):
            pass
    assert all(source.closed for source in sources)


async def test_a_slow_consumer_holds_the_sources_back() -> None:
    drawn = 0

    async def counting() -> AsyncIterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    async with aclosing(fan_in([counting(), counting()])) as merged:
        await anext(merged)
        for _ in range(100):
            await asyncio.sleep(0)
        assert drawn < 20
