"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Source(Generic[T]):
    """An async generator whose caller may be interrupted during a fetch, and closes it then."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._fetching: asyncio.Task[Any] | None = None

    async def fetch(self) -> T:
        self._fetching = asyncio.current_task()
        try:
            return await anext(self._items)
        finally:
            self._fetching = None

    async def close(self) -> None:
        if self._fetching is not None:  # a running generator cannot be closed
            if not self._fetching.cancelling():  # a second cancellation would interrupt its clean-up
                self._fetching.cancel()
            await asyncio.wait([self._fetching])
        await self._items.aclose()


class LoopThread:
    """Runs coroutines for any number of threads. A daemon: a program that forgets to close still ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        # Work accepted after the last check for running work would wait for ever. Reentrant, because the
        # garbage collector may close an iteration at any point of any thread.
        self._gate = threading.RLock()
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's value, or its exception. An interrupt (Ctrl-C) cancels it."""
        future = self._begin(work)
        if future is None:
            raise RuntimeError("this client is closed")
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("this client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T] | None:
        with self._gate:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        return None

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The generator's items, each fetched on demand; it is closed when the iteration is left."""
        source = Source(items)
        try:
            while True:
                try:
                    item = self.run(source.fetch())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not sys.is_finalizing():  # at exit nothing runs on a daemon thread
                self._leave(source.close())

    def _leave(self, closing: Coroutine[Any, Any, None]) -> None:
        future = self._begin(closing)
        if future is not None and threading.current_thread() is not self._thread:
            with contextlib.suppress(CancelledError):  # closed meanwhile, with all other generators
                future.result()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last`, cancel all remaining work, of whichever thread, and end the thread."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(_end(last()), self._loop)
        ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        try:
            ended.result()
        finally:
            if ended.done():  # else interrupted: the thread ends by itself
                self._thread.join()
                self._loop.close()


async def _end(last: Coroutine[Any, Any, None]) -> None:
    try:
        await last
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
