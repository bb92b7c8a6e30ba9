"""A worker at work on one queue: its components in one task group, and their end in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire.state.queue_info import QueueInfo
from millstream_worker.delivery.release import RetryDelay, release_jobs
from millstream_worker.jobs.job import Job
from millstream_worker.service.components import Resources, assemble
from millstream_worker.service.stop_signal import StopSignal

_log = structlog.get_logger(__name__)
_ENGINE_STOP_S = 5.0
_PULSE_S = 1.0
_LOOPS = (
    "supervisor", "writer", "leases", "reading", "pictures", "lookup", "quarantine", "control", "upkeep"
)  # fmt: skip


class QueueSession:
    """`failure`, after `run`: the reason why this worker cannot serve any more; empty after a drain."""

    def __init__(self, resources: Resources, info: QueueInfo, stop: StopSignal) -> None:
        self._resources = resources
        self._stop = stop
        self.components = assemble(resources, info, stop)

    @property
    def failure(self) -> str:
        return self.components.supervisor.failure or self.components.model.replaced

    def wake(self) -> None:
        """Notice that the stop was hurried."""
        self.components.table.changed.notify()

    async def run(self) -> None:
        """Run until a stop is requested, or no engine can be started."""
        components = self.components
        async with asyncio.TaskGroup() as group:
            tasks = self._start(group)
            watches = [group.create_task(watch) for watch in self._watches()]
            try:
                await self._stop.asked.wait()
                await self._drain(tasks)
                await components.supervisor.stop(_ENGINE_STOP_S)  # 7 nobody waits for its tokens any more
                await tasks["supervisor"]
            finally:  # also after an error: none of these ends by being cancelled alone
                for task in watches:
                    task.cancel()
                await self._stop_all()

    async def aclose(self) -> None:
        for reader in self.components.readers:
            await reader.aclose()
        await self.components.pool.close()

    def _start(self, group: asyncio.TaskGroup) -> dict[str, asyncio.Task[None]]:
        """Every component's loop, by name; those of the shards are "intake 0" and so on."""
        loops = {name: getattr(self.components, name) for name in _LOOPS}
        loops |= {f"intake {shard}": intake for shard, intake in enumerate(self.components.intakes)}
        return {name: group.create_task(loop.run(), name=name) for name, loop in loops.items()}

    async def _drain(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        components = self.components
        self._begin_drain()
        intakes = [task for name, task in tasks.items() if name.startswith("intake")]
        await asyncio.wait([*intakes, tasks["reading"], tasks["pictures"]])  # 1 no new work
        await self._release(components.table.put_off)  # 2 others read the long jobs
        await self._finish_running()  # 3 leases are still renewed here
        components.quarantine.stop()
        await asyncio.wait([tasks["quarantine"]])
        components.writer.stop()
        await tasks["writer"]
        await components.writer.write_all()  # 4 tokens that readers do not have yet
        await self._release(lambda: list(components.table))  # 5 others continue the rest
        components.lookup.stop()
        components.leases.stop()  # 6 only now let the leases and the heartbeat go
        components.upkeep.stop()
        await tasks["upkeep"]  # a heartbeat in flight would be written after its deletion
        await self._stop_beating()

    def _begin_drain(self) -> None:
        components = self.components
        components.report.draining = True
        self._resources.health.problem = self.failure or "draining"
        if not self.failure:
            _log.info("draining")
        components.upkeep.wake("heartbeat")
        for intake in components.intakes:
            intake.stop()
        components.reading.stop()
        components.pictures.stop()

    async def _stop_all(self) -> None:
        parts = self.components
        stopped: list[Any] = [parts.reading, parts.pictures, parts.quarantine, parts.writer, parts.lookup]
        for part in (*parts.intakes, *stopped, parts.leases, parts.upkeep):
            part.stop()
        await parts.control.stop()

    def _watches(self) -> list[Coroutine[None, None, None]]:
        watches = [self._pulse(), self._end_on_failure(), self._resources.metrics.loop_gaps.watch()]
        return [*watches, self._end_when_empty()] if self._resources.settings.burst else watches

    async def _finish_running(self) -> None:
        """Within the grace period, which begins once the worker is asked to end."""
        table, failed = self.components.table, self.components.supervisor.failed
        grace_s = self._resources.settings.grace_s
        if len(table):
            _log.info("finishing running jobs", jobs=len(table), grace_s=grace_s)
        while len(table) and not self._stop.limited.is_set() and not failed.is_set():
            await self._wait_for_ends()
        try:
            async with asyncio.timeout(grace_s):
                while len(table) and not self._stop.hurried.is_set() and not failed.is_set():
                    await self._wait_for_ends()
        except TimeoutError:
            _log.warning("grace period over", jobs=len(table))

    async def _wait_for_ends(self) -> None:
        """Jobs that lose their engine, and with it their images, are for others: none is prepared now."""
        table = self.components.table
        await table.changed.wait(_PULSE_S)
        if table.to_prepare():
            await self._release(table.to_prepare)

    async def _release(self, left: Callable[[], Sequence[Job]]) -> None:
        resources, supervisor = self._resources, self.components.supervisor
        delay = RetryDelay(resources.settings.retry_backoff_s, resources.settings.retry_backoff_max_s)
        if jobs := left():
            _log.info("releasing jobs", jobs=len(jobs))
            await release_jobs(
                resources.consumer,
                self.components.table,
                resources.metrics,
                left,
                engine_works=self.components.queue.ever_proved,
                delay=delay if supervisor.failed.is_set() else None,
            )

    async def _stop_beating(self) -> None:
        try:
            await self.components.heartbeats.end()
        except (RedisError, OSError):
            return  # it runs out by itself

    async def _pulse(self) -> None:
        components, resources = self.components, self._resources
        while True:
            resources.loop_watch.turn()
            components.report.log_line()
            resources.metrics.jobs_held.set(len(components.table))
            if not self._stop.asked.is_set():
                resources.health.problem = (
                    components.upkeep.trouble if components.engine.up else "no engine is ready"
                )
            await asyncio.sleep(_PULSE_S)

    async def _end_on_failure(self) -> None:
        await self.components.supervisor.failed.wait()
        self._stop.end()
        self.components.table.changed.notify()

    async def _end_when_empty(self) -> None:
        for intake in self.components.intakes:
            await intake.empty.wait()
        self._stop.end()
