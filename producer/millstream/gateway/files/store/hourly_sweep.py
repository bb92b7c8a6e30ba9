"""Sweeps the store of files once an hour: one gateway of all that share it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Never

from millstream.errors import MillstreamError
from millstream.gateway.redis.file_calls import Sweep, claim_sweep
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.openai.api_error import ApiError

log = logging.getLogger(__name__)
SWEEP_S = 3600.0  # between two sweeps of all gateways together
LOOK_S = 300.0


async def sweep_hourly(redis: GatewayRedis, kind: Sweep, sweep: Callable[[], Awaitable[int]]) -> Never:
    """Calls `sweep`, which returns how many objects it has deleted, now and then, for ever."""
    while True:
        try:
            ours = await redis.run(claim_sweep(kind, while_ms=round(SWEEP_S * 1000)))
            if ours and (count := await sweep()):
                log.warning("%d objects that nobody needs were deleted from the store of files", count)
        except (MillstreamError, ApiError) as error:
            log.warning("the store of files was not swept: %s", error)
        except Exception:  # whatever is in a record ends no gateway
            log.exception("the store of files was not swept")
        await asyncio.sleep(LOOK_S)
