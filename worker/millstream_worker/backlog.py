"""The unread part of a lane, as its consumer group sees it."""

from __future__ import annotations

from typing import Any

from millstream.wire.keys import GROUP


async def first_unread(redis: Any, lane_key: str) -> bytes | None:
    """The id of the oldest entry that no worker has read; None where there is none. Raises redis-py's errors,
    also where the lane does not exist."""
    groups = await redis.xinfo_groups(lane_key)
    last = next((row["last-delivered-id"] for row in groups if row["name"] == GROUP.encode()), b"0-0")
    unread = await redis.xrange(lane_key, b"(" + last, "+", count=1)
    return unread[0][0] if unread else None
