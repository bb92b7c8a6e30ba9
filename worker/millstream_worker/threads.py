"""Runs work in a thread that may be abandoned: neither the end of the loop nor that of the process waits for
it, as both do for `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_NAME = "given up at the end"


async def in_thread(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Returns or raises what `function` does. If the caller is cancelled, the thread goes on for nobody."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except StopIteration as error:  # which no future of asyncio takes: its waiter would wait for ever
            raised = RuntimeError("a StopIteration that left its function")
            future.set_exception(raised.with_traceback(error.__traceback__))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=_NAME, daemon=True).start()
    return await asyncio.wrap_future(future)


def leave(status: int) -> int:
    """Exit at once if such a thread still runs: Python would finalize the interpreter under a library that
    computes, which crashes. Otherwise the caller exits with this status.
    """
    if any(thread.name == _NAME for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
