"""Begins a stream before its answer: an error at its start is an HTTP status, a later one breaks the answer
off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

T = TypeVar("T")


async def begun(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Returns the same items, once the first one is there. Raises what getting it raises."""
    async for first in items:
        return _chained(first, items)
    return items


async def _chained(first: T, items: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for item in items:
        yield item
