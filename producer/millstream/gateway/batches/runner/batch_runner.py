"""Looks for open batches that nobody carries out, and carries them out: a task of each gateway.

Tenants take turns, a batch a turn. A batch whose queues take and answer nothing gives its place to one that
waits for a place; its jobs stay where they are, and it is looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import structlog

from millstream.errors import MillstreamError, Unavailable
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_lease import BatchLease, LeaseLost
from millstream.gateway.batches.records.open_batches import OpenBatch
from millstream.gateway.batches.runner.batch_execution import BatchExecution
from millstream.gateway.batches.runner.part_sweep import PartSweep
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.object_store import StoreUnavailable
from millstream.gateway.files.store.store_marker import TOLD
from millstream.gateway.redis.batch_calls import TakeOutcome, TakeReply
from millstream.logs.failure_log import FailureLog, FailuresOf
from millstream.logs.log_setup import withheld
from millstream.wire.timing import ServerClock, within

_log = structlog.get_logger(__name__)
LOOK_S = 0.5
COUNT_S = 5.0  # between two counts of the open batches
MOST_BATCHES = 16  # at once, of one gateway
MOST_OF_TENANT = 4
STALLED_S = 1.0  # without progress, after which another batch may have the place …
SLOW_S = 30.0  # … where a queue of the batch has a worker: a place changes hands at the cost of its window
AGAIN_MS = 5_000  # until a batch is tried again that could not be carried out
LONGEST_AGAIN_MS = 60_000  # if it has given its place up again and again
STOP_S = 5.0  # longest wait for leases to be given back


@dataclass(slots=True, eq=False)
class _Run:
    """A batch that is carried out here. `again_ms`: when it is looked at again, if it gives its place up."""

    batch: OpenBatch
    lease: BatchLease
    execution: BatchExecution | None = None
    task: asyncio.Task[None] | None = None
    again_ms: int | None = None

    @property
    def stalled_s(self) -> float:
        return 0.0 if self.execution is None or self.again_ms is not None else self.execution.stalled_s


class BatchRunner:
    """Carries out this gateway's batches. `run` ends some moments after `stop`."""

    def __init__(self, gateway: GatewayContext) -> None:
        self._gateway = gateway
        self._catalogue = BatchCatalogue(gateway.redis)
        self._open = self._catalogue.open
        self._clock = ServerClock()
        self._running: dict[OpenBatch, _Run] = {}
        self._given_up: dict[OpenBatch, int] = {}  # how often each has given its place up, without an answer
        self._counted_s = 0.0
        self._trouble = FailureLog("no batch can be carried out now", "batches are carried out again")
        self._tenants = FailuresOf("batches of a tenant wait")
        self._failing = FailuresOf("batch failed; it is tried again")
        self._stopping = asyncio.Event()

    async def stop(self) -> None:
        """Gives its leases back at once; another gateway goes on with the batches under way."""
        self._stopping.set()
        tasks = [run.task for run in self._running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def run(self) -> None:
        await self._gateway.directory.own_loaded()  # until then the names of models are not known
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(PartSweep(self._gateway, self._catalogue).run())
            while not self._stopping.is_set():
                pause_s = AGAIN_MS / 1000
                try:
                    await self._look(group)
                    pause_s = LOOK_S
                except TOLD:
                    pass
                except MillstreamError as error:
                    self._trouble.failed(error=str(error))
                except Exception as error:  # noqa: BLE001 — whatever is in a record ends no gateway
                    self._trouble.failed(exc_info=withheld(error))
                await within(self._stopping, pause_s)
            sweeping.cancel()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        with self._gateway.redis.reach():
            await self._clock.sync(self._gateway.redis.client)
        turns = await self._open.tenants_due(self._clock.now_ms())
        usable = not turns or await self._store_is_usable()
        while turns:
            turns = [tenant for tenant in turns if await self._takes_turn(tenant, group, usable=usable)]
        await self._open.adopt()
        await self._count()
        if usable:
            self._trouble.worked()
        else:
            await within(self._stopping, AGAIN_MS / 1000)

    async def _count(self) -> None:
        if time.monotonic() >= self._counted_s + COUNT_S:
            self._counted_s = time.monotonic()
            self._gateway.metrics.open_batches.set(await self._open.count())

    async def _store_is_usable(self) -> bool:
        try:
            await self._gateway.marker.confirm()
        except TOLD:
            return False
        except MillstreamError as error:
            self._trouble.failed(error=str(error))
            return False
        return True

    async def _takes_turn(self, tenant: str, group: asyncio.TaskGroup, *, usable: bool) -> bool:
        """Returns what `_take_turn` does. A tenant whose list is damaged keeps no other waiting."""
        try:
            return await self._take_turn(tenant, group, usable=usable)
        except MillstreamError as error:
            if not isinstance(error, TOLD):
                self._tenants.failed(tenant, tenant=tenant, again_s=AGAIN_MS / 1000, error=str(error))
            await self._open.put_off(tenant, self._clock.now_ms() + AGAIN_MS)
            return False

    async def _take_turn(self, tenant: str, group: asyncio.TaskGroup, *, usable: bool) -> bool:
        """Begins one batch of the tenant. False if there is none, or no place for one. While the store is not
        usable, only those that have waited for it too long.
        """
        own = sum(batch.tenant == tenant for batch in self._running)
        if self._stopping.is_set() or own >= MOST_OF_TENANT or not self._has_place():
            return False  # its turn is not over: another gateway may have a place
        for batch in await self._open.due(tenant, self._clock.now_ms()):
            if batch not in self._running and (usable or await self._is_given_up(batch)):
                try:
                    if await self._try(batch, group):
                        await self._open.end_turn(tenant, self._clock.now_ms())
                        return True
                except MillstreamError as error:  # a damaged record keeps no other waiting
                    self._tell_failure(batch, error)
                    await self._open.schedule(batch, self._clock.now_ms() + AGAIN_MS)
        await self._open.end_turn(tenant, self._clock.now_ms())
        return False

    async def _is_given_up(self, batch: OpenBatch) -> bool:
        record = await self._catalogue.find(batch.tenant, batch.id)
        return record is not None and record.is_given_up(time.time())

    def _has_place(self) -> bool:
        return self._places() < MOST_BATCHES or self._most_stalled() is not None

    def _places(self) -> int:
        return sum(run.again_ms is None for run in self._running.values())

    def _most_stalled(self) -> _Run | None:
        stalled = [run for run in self._running.values() if run.stalled_s >= self._patience_s(run)]
        return max(stalled, key=lambda run: run.stalled_s, default=None)

    def _patience_s(self, run: _Run) -> float:
        queues = run.execution.queues if run.execution is not None else ()
        return SLOW_S if any(map(self._gateway.directory.has_worker, queues)) else STALLED_S

    async def _try(self, batch: OpenBatch, group: asyncio.TaskGroup) -> bool:
        """Takes the batch if nobody has it. True if it is carried out here now."""
        redis, lease_s = self._gateway.redis, self._gateway.settings.batch_lease_s
        reply, lease = await BatchLease.take(redis, batch, lease_s)
        if reply.outcome is not TakeOutcome.TAKEN:
            await self._put_off(batch, reply)
            return False
        if self._places() >= MOST_BATCHES and (stalled := self._most_stalled()) is not None:
            self._give_place_up(stalled)
        await self._open.schedule(batch, self._clock.now_ms() + round(lease_s * 1000))
        run = self._running[batch] = _Run(batch, lease)
        run.task = group.create_task(self._carry_out(run))
        return True

    def _give_place_up(self, run: _Run) -> None:
        assert run.execution is not None, "it has begun to run"
        assert run.task is not None
        times = 0 if run.execution.answered else self._given_up.get(run.batch, 0)
        self._given_up[run.batch] = times + 1
        run.again_ms = self._clock.now_ms() + min(AGAIN_MS << min(times, 10), LONGEST_AGAIN_MS)
        run.task.cancel()

    async def _put_off(self, batch: OpenBatch, reply: TakeReply) -> None:
        if reply.outcome is TakeOutcome.HELD:
            await self._open.schedule(batch, self._clock.now_ms() + reply.left_ms)
        else:  # it has ended, or was announced, and its gateway died before it had created it
            await self._unschedule(batch)

    async def _unschedule(self, batch: OpenBatch) -> None:
        await self._open.unschedule(batch, self._clock.now_ms())
        self._given_up.pop(batch, None)

    async def _carry_out(self, run: _Run) -> None:
        batch = run.batch
        try:
            if (record := await self._catalogue.find(batch.tenant, batch.id)) is not None:
                run.execution = BatchExecution(self._gateway, self._catalogue, record, run.lease)
                await run.execution.run()
            await self._unschedule(batch)
        except LeaseLost:
            _log.warning("lease of a batch lost: another gateway goes on with it", batch_id=batch.id)
            await self._leave(run, self._clock.now_ms())
        except asyncio.CancelledError:  # by `stop`, or for another batch
            await self._leave(run, run.again_ms or 0)
            raise
        except Exception as error:  # noqa: BLE001 — nor another batch
            self._tell_failure(batch, error)
            await self._leave(run, self._clock.now_ms() + AGAIN_MS)
        finally:
            del self._running[batch]

    def _tell_failure(self, batch: OpenBatch, error: Exception) -> None:
        if isinstance(error, Unavailable) and not isinstance(error, StoreUnavailable):
            self._gateway.redis.tell(error)
        elif not isinstance(error, TOLD):
            known = isinstance(error, MillstreamError)
            why = {"error": str(error)} if known else {"exc_info": withheld(error)}
            again_s = AGAIN_MS / 1000
            self._failing.failed(batch.id, batch_id=batch.id, tenant=batch.tenant, again_s=again_s, **why)

    async def _leave(self, run: _Run, again_ms: int) -> None:
        """Leaves the batch to any gateway, from `again_ms` on."""
        await run.lease.release()
        with contextlib.suppress(MillstreamError):  # it is looked for when the lease would have ended
            await self._open.schedule(run.batch, again_ms)
