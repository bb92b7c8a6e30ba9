"""Reads the bodies of requests and the lines of batches, so that nobody else waits for it. Parsers hold the
interpreter's lock: what is long is read in a process, as a thread would keep the loop standing, too.

Whatever reading raises is the end of that body or line alone. It is logged once a kind and counted; the text
of the exception is never shown: it may quote the input.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from millstream.batch.rows.faults import trace_of
from millstream.errors import ENDS
from millstream.gateway.web.api_error import NO_RETRY, ApiError
from millstream.gateway.web.gateway_metrics import GatewayMetrics

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)
SHORT_BYTES = 64 * 1024  # read in the loop: a MiB takes up to 0.6 s
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class _Raised:
    kind: str
    trace: str


class InputReader:
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._pool: ProcessPoolExecutor | None = None  # made when it is needed
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by tenant
        self._alone = asyncio.Lock()  # of bodies whose process has ended
        self._since_pause = 0  # bytes read in the loop
        self._known: set[str] = set()  # places that were logged

    async def read(
        self,
        tenant: str,
        read: Callable[Concatenate[bytes, P], T],
        data: bytes,
        *args: P.args,
        **more: P.kwargs,
    ) -> T:
        """What `read` returns, which has to be small; it and its arguments, picklable. Raises ApiError for
        whatever it raises.
        """
        reading = partial(read, data, *args, **more)
        if len(data) <= SHORT_BYTES:
            await self._pause(len(data))
            made = _guarded(reading)
        else:
            made = await self._read_aside(tenant, reading)
        if isinstance(made, _Raised):
            self.tell(made.trace)
            message = (
                f"reading this request raised {made.kind}, which is not expected of any: change it, or tell "
                "the operator; the gateway's log has the place"
            )
            raise ApiError(400, message, "unreadable_request", headers=NO_RETRY)
        return made

    def tell(self, trace: str) -> None:
        """Count what reading has raised, and log it once a kind and place. `trace`: see `trace_of`."""
        self._metrics.unreadable.inc()
        place = trace.rpartition("  File ")[2]
        if place not in self._known:
            self._known.add(place)
            log.error("a request cannot be read; it fails: %s", trace)

    def close(self) -> None:
        """Nothing more is read; what is being read is waited for when the gateway's process ends."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _pause(self, size: int) -> None:
        """Short ones come in any number: others have their turn between them."""
        self._since_pause += size
        if self._since_pause > SHORT_BYTES:
            self._since_pause = size
            await asyncio.sleep(0)

    async def _read_aside(self, tenant: str, reading: Callable[[], T]) -> T | _Raised:
        """A tenant has one body there at a time, and so all tenants their turns."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn:
            pool = self._pool = self._pool or _new_pool(PROCESSES)
            try:
                return await asyncio.wrap_future(pool.submit(_guarded, reading))
            except BrokenProcessPool:  # perhaps by another body
                if self._pool is pool:
                    self._pool = None
            async with self._alone:
                return await _read_alone(reading)


async def _read_alone(reading: Callable[[], T]) -> T | _Raised:
    pool = _new_pool(1)
    try:
        return await asyncio.wrap_future(pool.submit(_guarded, reading))
    except BrokenProcessPool:
        return _Raised("an end of its process", "the process that read it has ended")
    finally:
        pool.shutdown(wait=False)


def _new_pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), _prepare)


def _guarded(reading: Callable[[], T]) -> T | _Raised:
    try:
        return reading()
    except ENDS:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
        return _Raised(type(error).__name__, trace_of(error))


def _prepare() -> None:
    """In the process: it ends with its gateway, and not by the terminal's interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(0)
