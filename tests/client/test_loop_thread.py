"""The event loop behind the synchronous client: interrupted, left and closed at any moment."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millstream.client.loop_thread import LoopThread


async def nothing() -> None: ...


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close(nothing)


class Items:
    """A generator that waits for ever, and takes its time to be left."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.left = threading.Event()

    async def generate(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.left.set()


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest takes for its own."""


@pytest.fixture
def interrupting() -> Iterator[int]:
    """The signal that raises Interrupted."""

    def raise_it(number: int, frame: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_an_interruption_comes_out_as_it_is(thread: LoopThread, interrupting: int) -> None:
    items = Items()
    iteration = thread.iterate(items.generate())
    assert next(iteration) == 1

    def interrupt() -> None:
        items.waiting.wait(20)
        os.kill(os.getpid(), interrupting)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(Interrupted):
        next(iteration)
    helper.join()
    assert items.left.wait(20)
    assert thread.run(asyncio.sleep(0, "still serves")) == "still serves"


def test_an_iteration_that_is_left_by_the_garbage_collector(thread: LoopThread) -> None:
    items = Items()
    held: dict[str, Any] = {"iteration": thread.iterate(items.generate())}
    held["itself"] = held
    next(held["iteration"])

    async def collect() -> None:
        gc.collect()

    gc.disable()
    try:
        del held
        thread.run(collect())  # on the loop's own thread, where nothing can be waited for
    finally:
        gc.enable()
    assert items.left.wait(20)


def test_closing_while_other_threads_go_on() -> None:
    """Each call gets its value or the error, and none waits for ever."""

    def work(thread: LoopThread) -> str:
        while True:
            try:
                thread.run(asyncio.sleep(0))
            except RuntimeError as error:
                return str(error)

    for _ in range(50):
        thread = LoopThread("test-loop")
        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, thread) for _ in range(4)]
            closing = [pool.submit(thread.close, nothing) for _ in range(2)]
            thread.close(nothing)
            for one in working:
                assert "closed" in one.result(timeout=20)
            for one in closing:
                one.result(timeout=20)


def test_a_close_that_fails_still_ends_the_thread() -> None:
    async def fail() -> None:
        raise OSError("no")

    thread = LoopThread("test-loop")
    with pytest.raises(OSError, match="no"):
        thread.close(fail)
    assert "test-loop" not in {one.name for one in threading.enumerate()}
    thread.close(fail)
