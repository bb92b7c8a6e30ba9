"""How much is taken from the queue beside what waits already."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine.ready import INFO
from support.workers.jobs import IdleEngine, held_job

from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable

TEXT: Any = None  # nothing is tokenized


@pytest.fixture
def queue() -> EngineQueue:
    return EngineQueue(IdleEngine())


@pytest.fixture
def table(queue: EngineQueue) -> JobTable:
    return JobTable(queue)


@pytest.fixture
def capacity(queue: EngineQueue, table: JobTable) -> Capacity:
    slot = ModelSlot()
    slot.publish(ServedModel(TEXT, INFO))
    capacity = Capacity(table, queue, slot, lookahead=4)
    capacity.update(EngineStats(free_rows=4, blocks_free=64))
    return capacity


def test_jobs_that_wait_for_their_grammars_keep_no_others_away(
    queue: EngineQueue, table: JobTable, capacity: Capacity
) -> None:
    """A tenant's flood of formats, compiled one by one, must not leave the batch empty."""
    jobs = []
    for number in range(300):
        job = held_job(str(number), prompt=(1,), grammar=GrammarSpec("regex", f"a{number}"))
        job.rows = [ChoiceOutput(0, TEXT)]
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


def test_predictions_that_wait_fill_the_look_ahead_as_prompts_do(table: JobTable, capacity: Capacity) -> None:
    job = held_job(prompt=(1,))
    table.take(job)
    assert not capacity.flooded
    job.prediction = tuple(range(INFO.token_capacity))
    assert capacity.flooded
