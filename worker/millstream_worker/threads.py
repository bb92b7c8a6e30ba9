"""Work in a thread that may be given up: neither the loop's end nor the process' waits for it, as they do for
`asyncio.to_thread`.
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
    """What it returns or raises. When the caller is cancelled, the thread goes on, and its result is lost."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=_NAME, daemon=True).start()
    return await asyncio.wrap_future(future)


def leave(status: int) -> int:
    """Where such a thread still runs, the process ends here: Python would take the interpreter apart under
    a library that computes, which crashes. Else the caller ends it with this status."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
