"""Runs a command's work beside a task that watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_while(watch: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, during which `watch` runs. An exception of either ends both and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch)
            try:
                return await group.create_task(work)
            finally:
                watching.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
