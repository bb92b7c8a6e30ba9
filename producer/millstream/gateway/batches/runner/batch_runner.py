"""Looks for open batches that nobody carries out, and carries them out: a task of each gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

from millstream.errors import InvalidRequest, MillstreamError, ProtocolError
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue, OpenBatch
from millstream.gateway.batches.records.batch_lease import BatchLease, LeaseLost
from millstream.gateway.batches.runner.batch_execution import BatchExecution
from millstream.gateway.batches.runner.result_files import ResultFiles
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.store_marker import StoreMismatch
from millstream.gateway.redis.batch_calls import TakeOutcome, TakeReply
from millstream.wire.timing import ServerClock, within

log = logging.getLogger(__name__)
LOOK_S = 0.5
MOST_BATCHES = 16  # at once, of one gateway
MOST_OF_TENANT = 4
AGAIN_MS = 5_000  # until a batch is tried again that could not be carried out
STOP_S = 5.0  # longest wait for leases to be given back


class BatchRunner:
    """Carries out this gateway's batches. `run` ends some moments after `stop`."""

    def __init__(self, gateway: GatewayContext) -> None:
        self._gateway = gateway
        self._catalogue = BatchCatalogue(gateway.redis)
        self._clock = ServerClock()
        self._running: dict[OpenBatch, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()

    async def stop(self) -> None:
        """Gives its leases back at once; another gateway goes on with the batches under way."""
        self._stopping.set()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def run(self) -> None:
        await self._gateway.directory.own_loaded()  # until then the names of models are not known
        async with asyncio.TaskGroup() as group:
            while not self._stopping.is_set():
                try:
                    await self._look(group)
                    pause_s = LOOK_S
                except (MillstreamError, StoreMismatch) as error:
                    log.warning("no batch can be carried out now: %s", error)
                    pause_s = AGAIN_MS / 1000
                await within(self._stopping, pause_s)

    async def _look(self, group: asyncio.TaskGroup) -> None:
        redis = self._gateway.redis.client
        with self._gateway.redis.reach():
            await self._clock.sync(redis)
        self._gateway.metrics.open_batches.set(await self._catalogue.count_open())
        due = await self._catalogue.due(self._clock.now_ms())
        if due:
            await self._gateway.marker.confirm()
        tenants = Counter(batch.tenant for batch in self._running)
        for batch in due:
            if len(self._running) >= MOST_BATCHES or self._stopping.is_set():
                return
            if batch not in self._running and tenants[batch.tenant] < MOST_OF_TENANT:
                try:
                    tenants[batch.tenant] += await self._try(batch, group)
                except (InvalidRequest, ProtocolError) as error:  # a damaged record keeps no other waiting
                    log.warning("batch %s failed, retrying in %.0f s: %s", batch.id, AGAIN_MS / 1000, error)
                    await self._catalogue.schedule(batch, self._clock.now_ms() + AGAIN_MS)

    async def _try(self, batch: OpenBatch, group: asyncio.TaskGroup) -> bool:
        """Takes the batch if nobody has it. True if it is carried out here now."""
        redis, lease_s = self._gateway.redis, self._gateway.settings.batch_lease_s
        reply, lease = await BatchLease.take(redis, batch, lease_s)
        if reply.outcome is not TakeOutcome.TAKEN:
            await self._put_off(batch, reply)
            return False
        await self._catalogue.schedule(batch, self._clock.now_ms() + round(lease_s * 1000))
        self._running[batch] = group.create_task(self._carry_out(batch, lease))
        return True

    async def _put_off(self, batch: OpenBatch, reply: TakeReply) -> None:
        now_ms = self._clock.now_ms()
        match reply.outcome:
            case TakeOutcome.HELD:
                await self._catalogue.schedule(batch, now_ms + reply.left_ms)
            case TakeOutcome.ENDED:
                await self._clear(batch)
            case _:  # it was announced, and its gateway died before it had created it
                await self._catalogue.unschedule(batch)

    async def _clear(self, batch: OpenBatch) -> None:
        """Deletes the parts of an ended batch whose gateway died before it had done so."""
        if (record := await self._catalogue.find(batch.tenant, batch.id)) is not None:
            await ResultFiles(self._gateway.store, self._gateway.files).delete_parts(record)
        await self._catalogue.unschedule(batch)

    async def _carry_out(self, batch: OpenBatch, lease: BatchLease) -> None:
        try:
            if (record := await self._catalogue.find(batch.tenant, batch.id)) is not None:
                await BatchExecution(self._gateway, self._catalogue, record, lease).run()
            await self._catalogue.unschedule(batch)
        except LeaseLost:
            log.warning("lease of batch %s was lost to another gateway", batch.id)
            await self._leave(batch, lease, self._clock.now_ms())
        except asyncio.CancelledError:  # by `stop`
            await self._leave(batch, lease, 0)
            raise
        except Exception as error:
            if isinstance(error, MillstreamError):
                log.warning(
                    "batch %s failed, retrying in %.0f s: %s: %s",
                    batch.id,
                    AGAIN_MS / 1000,
                    type(error).__name__,
                    error,
                )
            else:
                log.exception("batch %s failed, retrying in %.0f s", batch.id, AGAIN_MS / 1000)
            await self._leave(batch, lease, self._clock.now_ms() + AGAIN_MS)
        finally:
            del self._running[batch]

    async def _leave(self, batch: OpenBatch, lease: BatchLease, again_ms: int) -> None:
        """Leaves the batch to any gateway, from `again_ms` on."""
        await lease.release()
        with contextlib.suppress(MillstreamError):  # it is looked for when the lease would have ended
            await self._catalogue.schedule(batch, again_ms)
