"""What is asked of an engine for a job."""

from __future__ import annotations

import pytest

from millstream.wire.keys import LANES, Lane, QueueKeys
from millstream.wire.messages.messages import Request, Timing
from millstream.wire.messages.replies import LaneEntry
from millstream_worker.jobs.job import Job


@pytest.mark.parametrize("lane", LANES)
def test_the_lane_of_the_entry_counts_and_not_that_of_the_request(lane: Lane) -> None:
    """Clients in other languages may send two."""
    entry = LaneEntry(lane.value, "1-1", "0-a", 1, b"")
    other = next(one for one in LANES if one is not lane)
    request = Request(token_ids=(1,), lane=other)
    job = Job(QueueKeys("default").shard(0), entry, request, attempt=1, died=0, timing=Timing())
    assert job.engine_request().priority == LANES.index(lane)
