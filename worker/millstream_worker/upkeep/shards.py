"""Runs a call on every shard of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from millstream.wire.keys import ShardKeys


async def on_all(shards: Sequence[ShardKeys], do: Callable[[ShardKeys], Awaitable[object]]) -> None:
    """On all shards at once, before any error is raised: if one node of a Cluster is gone, the shards of the
    others do not wait for it."""
    replies = await asyncio.gather(*map(do, shards), return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
