"""The unread part of a lane: entries that its consumer group has not delivered, and the jobs parked beside
it.
"""

from __future__ import annotations

from typing import Any

from millstream.wire.keys import ShardKeys
from millstream.wire.messages.record import number
from millstream.wire.server_errors import is_damage
from millstream.wire.state.queue_counts import first_unread

_FRONT = 64  # parked jobs to look at for the oldest: every tenant's first is near the front


async def waiting_since_ms(redis: Any, shard: ShardKeys, lane: str) -> int | None:
    """Submission time of the oldest job that no worker has read; None without one. By the job's own time: the
    entry of a parked job is younger. Raises what `first_unread` does.
    """
    unread = await first_unread(redis, shard.lane(lane))
    places = await redis.zrange(shard.parked(lane), 0, _FRONT - 1)
    ids = [place.partition(b" ")[2] for place in places]
    if unread is not None:
        ids.append(unread[1].get(b"id", b""))
    async with redis.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.hmget(shard.job(job_id.decode(errors="replace")), "submitted_ms")
        rows = await pipeline.execute(raise_on_error=False) if ids else []
    if trouble := next((row for row in rows if isinstance(row, Exception) and not is_damage(row)), None):
        raise trouble
    times = [ms for row in rows if not isinstance(row, Exception) and (ms := _time(row[0])) is not None]
    if unread is not None and not times:  # a foreign entry: it names no job, or one whose hash is damaged
        times.append(int(unread[0].partition(b"-")[0]))
    return min(times, default=None)


def _time(stored: bytes | None) -> int | None:
    """Returns the time, or None where the hash is damaged: nobody can read when its job came."""
    try:
        return number(stored)
    except ValueError:
        return None
