"""Reads requests and lines of batches, and writes answers, so that nobody else waits for it. Parsers hold the
interpreter's lock: what is long is done in a process, as a thread would keep the loop standing, too.

Whatever the work raises is the end of that request, line or answer alone. It is logged once a kind and
counted; the text of the exception is never shown: it may quote the input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import structlog

from millstream.batch.rows.faults import trace_of
from millstream.errors import ENDS
from millstream.gateway.gateway_metrics import GatewayMetrics

T = TypeVar("T")
P = ParamSpec("P")
_log = structlog.get_logger(__name__)
SHORT_BYTES = 64 * 1024  # worked on in the loop: a MiB takes up to 0.6 s
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class _Raised:
    kind: str
    trace: str


class UnexpectedError(Exception):
    """The work raised what nobody expected; its text names the exception's type alone."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"raised {kind}, which is not expected of any: change it, or tell the operator; the gateway's "
            "log has the place"
        )


class CpuExecutor:
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._pool: ProcessPoolExecutor | None = None  # made when it is needed
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by tenant
        self._alone = asyncio.Lock()  # of work whose process has ended
        self._since_pause = 0  # bytes worked on in the loop
        self._known: set[str] = set()  # places that were logged

    async def run(
        self, tenant: str, size: int, work: Callable[P, T], /, *args: P.args, **more: P.kwargs
    ) -> T:
        """Returns the result of `work`: plain data, as it and the arguments are pickled if `size`, the bytes
        to work on, is above SHORT_BYTES. Raises UnexpectedError for whatever `work` raises.
        """
        task = partial(work, *args, **more)
        if size <= SHORT_BYTES:
            await self._pause(size)
            made = _guarded(task)
        else:
            made = await self._run_aside(tenant, task)
        if isinstance(made, _Raised):
            self.tell(made.trace)
            raise UnexpectedError(made.kind)
        return made

    def tell(self, trace: str) -> None:
        """Count what the work has raised, and log it once a kind and place. `trace`: see `trace_of`."""
        self._metrics.unreadable.inc()
        place = trace.rpartition("  File ")[2]
        if place not in self._known:
            self._known.add(place)
            _log.error("request or answer cannot be read; it fails", trace=trace)

    def close(self) -> None:
        """Begins nothing more; running work is waited for when the gateway's process ends."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _pause(self, size: int) -> None:
        """Gives other tasks their turn after SHORT_BYTES of short work."""
        self._since_pause += size
        if self._since_pause > SHORT_BYTES:
            self._since_pause = size
            await asyncio.sleep(0)

    async def _run_aside(self, tenant: str, task: Callable[[], T]) -> T | _Raised:
        """Runs a task in the pool, one of a tenant at a time, so that all tenants have their turns."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn:
            pool = self._pool = self._pool or _new_pool(PROCESSES)
            try:
                return await asyncio.wrap_future(pool.submit(_guarded, task))
            except BrokenProcessPool:  # perhaps by other work
                if self._pool is pool:
                    self._pool = None
            async with self._alone:
                return await _run_alone(task)


async def _run_alone(task: Callable[[], T]) -> T | _Raised:
    pool = _new_pool(1)
    try:
        return await asyncio.wrap_future(pool.submit(_guarded, task))
    except BrokenProcessPool:
        return _Raised("an end of its process", "its process has ended")
    finally:
        pool.shutdown(wait=False)


def _new_pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), _prepare)


def _guarded(task: Callable[[], T]) -> T | _Raised:
    try:
        return task()
    except ENDS:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
        return _Raised(type(error).__name__, trace_of(error))


def _prepare() -> None:
    """Prepares a pool's process: it ends with its gateway, and not by the terminal's interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(0)
