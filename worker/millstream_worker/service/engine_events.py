"""Passes the engine's reports to the components that act on them. Only this publishes the served model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Refused, Step
from millstream_worker.engine_link.death_charges import Blame
from millstream_worker.engine_link.supervisor import Unusable
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.observe.metrics import Metrics
from millstream_worker.service.queue_model import QueueModel
from millstream_worker.text.model import TokenizerUnusable


@dataclass(slots=True, eq=False)
class EngineEvents:
    """The supervisor's EngineCallbacks."""

    model: ModelSlot
    queue_model: QueueModel
    output: OutputProcessor
    capacity: Capacity
    metrics: Metrics
    blame: Blame

    def loading(self, step: str) -> None:
        self.model.begin(step)

    async def found(self, model: str, digest: str) -> None:
        """Raises Unusable if the queue has another model."""
        await self.queue_model.check(model, digest)

    async def ready(self, info: EngineInfo) -> None:
        """Raises Unusable if the queue has another model, or this one's tokenizer cannot be used."""
        try:
            served = await self.model.load(info)
        except TokenizerUnusable as error:
            raise Unusable(str(error)) from error
        await self.queue_model.record(info)  # last: who replaces a model can serve
        self.metrics.engine_ready(info)
        self.model.publish(served)
        self.capacity.update(EngineStats(free_rows=info.max_rows, blocks_free=info.blocks))  # it is empty

    def stepped(self, step: Step) -> None:
        self.output.step(step)
        self.metrics.observe_step(step.stats)
        self.capacity.update(step.stats)

    def refused(self, refused: Refused) -> None:
        self.output.refused(refused)

    def compiled(self, compiled: Compiled) -> None:
        self.output.compiled(compiled)

    def gone(self) -> None:
        self.metrics.engine_gone()
        self.capacity.update(EngineStats())  # no rows, no blocks

    def died(self, how: str, jobs: Sequence[Job]) -> None:
        self.metrics.engine_restarts.inc()
        self.blame.charge(jobs, how)
