"""Jobs and an engine as the parts of a worker's front know them, without a queue."""

from __future__ import annotations

from typing import Any

from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import Request, Timing
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.engine_link.link import EnginePort
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import JobAttempt, JobInput, JobTimes

SHARD = QueueKeys("default").shard(0)


class IdleEngine(EnginePort):
    """Takes everything and computes nothing."""

    @property
    def up(self) -> bool:
        return True


def held_job(name: str = "a", payload: bytes = b"", *, lane: str = "batch", **fields: Any) -> Job:
    """One that a worker has read in its first attempt; `fields`: of `Job` or its records, others than by
    default."""
    entry = LaneEntry(lane, f"1-{name}", f"0-{name}", 1, payload)
    times = JobTimes(fields.pop("timing", Timing()))
    job = Job(SHARD, entry, JobAttempt(1, 0), JobInput(Request(token_ids=(0,))), times, phase=JobPhase.READY)
    for field, value in fields.items():
        records = (job, job.attempt, job.input, job.outputs, job.log)
        [record] = [one for one in records if field in one.__slots__]
        setattr(record, field, value)
    return job
