"""Ctrl-C during a command's asynchronous work: the work ends in order."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE_S = 1.0  # `timeout -s INT` and others signal the process, and then its group


def run_async(
    work: Coroutine[Any, Any, T],
    at_once_s: float = AT_ONCE_S,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Like asyncio.run, but a second SIGINT interrupts the clean-up; within `at_once_s` of the first it is
    ignored.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_ended_in_order(work, at_once_s))


async def _ended_in_order(work: Coroutine[Any, Any, T], at_once_s: float) -> T:
    of_asyncio = signal.getsignal(signal.SIGINT)
    if not callable(of_asyncio) or threading.current_thread() is not threading.main_thread():
        return await work
    last_s = -at_once_s

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        if (now_s := time.monotonic()) - last_s >= at_once_s:
            last_s = now_s
            of_asyncio(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        return await work
    finally:
        signal.signal(signal.SIGINT, of_asyncio)
