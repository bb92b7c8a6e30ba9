"""Jobs and an engine as the parts of a worker's front know them, without a queue."""

from __future__ import annotations

from typing import Any

from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import Request, Timing
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.engine_link import EnginePort
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase

SHARD = QueueKeys("default").shard(0)


class IdleEngine(EnginePort):
    """Takes everything and computes nothing."""

    @property
    def up(self) -> bool:
        return True


def held_job(name: str = "a", payload: bytes = b"", *, lane: str = "batch", **fields: Any) -> Job:
    """One that a worker has read in its first attempt; `fields`: of `Job`, others than by default."""
    entry = LaneEntry(lane, f"1-{name}", f"0-{name}", 1, payload)
    given = {"request": Request(token_ids=(0,)), "attempt": 1, "died": 0, "timing": Timing()}
    return Job(SHARD, entry, **given | {"phase": JobPhase.READY} | fields)
