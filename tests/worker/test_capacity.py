"""How much is taken from the queue beside what waits already."""

from __future__ import annotations

from typing import Any

from millstream.wire.keys import QueueKeys
from millstream.wire.messages.messages import Request, Timing
from millstream.wire.messages.replies import LaneEntry
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.engine_link.port import EnginePort
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable

SHARD = QueueKeys("default").shard(0)
INFO = EngineInfo(
    model="m", architecture="a", dtype="float32", device="cpu", attention="none", vocab_size=1000,
    context_length=512, eos_ids=(), block_size=16, blocks=64, max_rows=4, kv_bytes_per_token=1, parameters=1,
    tokenizer="",
)  # fmt: skip


class Engine(EnginePort):
    """One that takes everything and computes nothing."""

    @property
    def up(self) -> bool:
        return True


def test_jobs_that_wait_for_their_grammars_keep_no_others_away() -> None:
    """A tenant's flood of formats, compiled one by one, must not leave the batch empty."""
    queue = EngineQueue(Engine())
    table, slot = JobTable(queue), ModelSlot()
    capacity = Capacity(table, queue, slot, lookahead=4)
    text: Any = None
    slot.publish(ServedModel(text, INFO))
    capacity.update(EngineStats(free_rows=4, blocks_free=64))
    jobs = []
    for number in range(300):
        entry = LaneEntry("batch", f"1-{number}", f"0-{number}", 1, b"")
        job = Job(SHARD, entry, Request(token_ids=(0,)), 1, 0, Timing(), prompt=(1,))
        job.rows, job.grammar = [ChoiceOutput(0, text)], GrammarSpec("regex", f"a{number}")
        table.take(job)
        jobs.append(job)
        if number == 200:
            assert capacity.room() == 7
    assert capacity.room() == 0, "not without a bound"
    for job in jobs[:260]:
        table.drop(job)
    assert capacity.room() == 7
    jobs[-1].set_compiled(1)
    assert capacity.room() == 6
    queue.engine_lost()
    assert capacity.room() == 0, "without an engine that compiles, all of them wait as others do"


def test_predictions_that_wait_fill_the_look_ahead_as_prompts_do() -> None:
    queue = EngineQueue(Engine())
    table, slot = JobTable(queue), ModelSlot()
    capacity = Capacity(table, queue, slot, lookahead=4)
    text: Any = None
    slot.publish(ServedModel(text, INFO))
    entry = LaneEntry("batch", "1-1", "0-1", 1, b"")
    job = Job(SHARD, entry, Request(token_ids=(0,)), 1, 0, Timing(), prompt=(1,))
    table.take(job)
    assert not capacity.flooded
    job.prediction = tuple(range(INFO.token_capacity))
    assert capacity.flooded
