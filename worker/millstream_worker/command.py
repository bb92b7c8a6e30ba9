"""The command `millstream-worker`: reads the settings, sets up logging and signals, and serves.

Exit status: 0 drained, 1 the worker cannot serve (the last line says why), 2 a setting is wrong, 3 the worker
was stuck and has ended itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from millstream.logs import log_setup
from millstream_worker import settings, threads
from millstream_worker.observe.watchdog import end_process

if TYPE_CHECKING:
    from millstream_worker.service.service import Service

_M_MMAP_THRESHOLD = -3  # malloc.h
_RETURNED_BYTES = 2**20
_log = structlog.get_logger(__name__)


def run(arguments: Sequence[str], *, replace_model: bool = False) -> int:
    """Serve; replace the queue's model where it is another one. Returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one request is one text: threads only cost
    chosen = _load(arguments)
    if chosen is None:
        return 2
    _return_large_blocks()
    log_setup.configure(chosen.log_format, chosen.log_level)
    for line in settings.mistyped(os.environ):
        _log.warning(line)
    _leave_torch_out()
    from millstream_worker.service.service import (  # slow to import: not needed to report a wrong setting
        CannotServe,
        Service,
    )

    try:
        asyncio.run(_serve(Service(chosen, end_stuck=end_process, replace_model=replace_model), chosen))
    except CannotServe as error:
        _log.error("worker ends", reason=str(error))
        return threads.leave(1)
    return threads.leave(0)


def check(arguments: Sequence[str]) -> int:
    """Start an engine with these settings, without a queue, and print what it finds about model and device.
    Returns the exit status: 1 if it cannot be started."""
    chosen = _load(arguments)
    if chosen is None:
        return 2
    from millstream_worker.engine.check_page import print_page

    return threads.leave(print_page(chosen.engine_config(), sys.stdout))


def _load(arguments: Sequence[str]) -> settings.Settings | None:
    """The settings; None after writing what is wrong with them."""
    try:
        return settings.load(arguments)
    except settings.BadSettings as error:
        for line in error.lines:
            sys.stderr.write(f"millstream-worker: {line}\n")
        return None


def _return_large_blocks() -> None:
    """Make glibc return large blocks. Each time one is freed, glibc raises its threshold for keeping blocks,
    up to 32 MiB: it kept 80 to 125 MiB after 16 messages of 16 MiB. With a fixed threshold, it returns all
    larger blocks.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


def _leave_torch_out() -> None:
    """Transformers imports torch if it is installed, even for a tokenizer alone: that took more than half of
    the start time, and two thirds of the memory. Only the engine process computes.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would report that torch is missing
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # as if it were not installed


async def _serve(service: Service, chosen: settings.Settings) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.drain)
    _log.info("worker starts", name=service.name, queue=chosen.queue, model=chosen.model)
    await service.run()
    for number in (signal.SIGTERM, signal.SIGINT):  # all jobs are released: ignore further signals
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
