"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any number of threads. A daemon: a program that forgets to close still ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's value, or its exception. Interrupted (Ctrl-C), it is cancelled."""
        if self.closed:
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("this client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The generator's items, each fetched when asked for; it is closed when the iteration is left."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self.closed and not sys.is_finalizing():  # at exit nothing runs on a daemon thread
                self.run(items.aclose())

    def close(self) -> None:
        """Cancel what still runs, for whichever thread, and end the thread."""
        if self.closed:
            return
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
