from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from router.processing.merge import merge


class Source:
    """Yields its name a few times; remembers that it was closed."""

    def __init__(self, name: str, count: int, *, error: Exception | None = None) -> None:
        self.name, self.count, self.error = name, count, error
        self.closed = False

    async def items(self) -> AsyncGenerator[str, None]:
        try:
            for i in range(self.count):
                await asyncio.sleep(0)
                yield f"{self.name}{i}"
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def test_every_item_arrives_and_each_sources_stay_in_order() -> None:
    sources = [Source("a", 100), Source("b", 3), Source("c", 0)]
    items = [item async for item in merge([source.items() for source in sources])]
    assert [item for item in items if item[0] == "a"] == [f"a{i}" for i in range(100)]
    assert [item for item in items if item[0] == "b"] == ["b0", "b1", "b2"]
    assert len(items) == 103


async def test_the_first_failure_is_raised_and_closes_the_others() -> None:
    sources = [Source("a", 10_000), Source("b", 2, error=ValueError("broken"))]
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge([source.items() for source in sources]):
            pass
    assert all(source.closed for source in sources)


async def test_closing_the_merged_stream_closes_all_sources() -> None:
    sources = [Source("a", 10_000), Source("b", 10_000)]
    async with aclosing(merge([source.items() for source in sources])) as items:
        await anext(items)
    assert all(source.closed for source in sources)


async def test_a_slow_consumer_makes_the_sources_wait() -> None:
    taken = 0

    async def endless() -> AsyncGenerator[int, None]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    async with aclosing(merge([endless()])) as items:
        await anext(items)
        for _ in range(100):
            await asyncio.sleep(0)
    assert taken < 50
