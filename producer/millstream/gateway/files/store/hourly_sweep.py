"""Sweeps the store of files once an hour: one gateway of all that share it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Never

import structlog

from millstream.errors import MillstreamError
from millstream.gateway.files.store.store_marker import TOLD
from millstream.gateway.redis.file_calls import Sweep, claim_sweep
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.logs.log_setup import withheld
from millstream.openai.api_error import ApiError

_log = structlog.get_logger(__name__)
SWEEP_S = 3600.0  # between two sweeps of all gateways together
LOOK_S = 300.0


async def sweep_hourly(redis: GatewayRedis, kind: Sweep, sweep: Callable[[], Awaitable[int]]) -> Never:
    """Calls `sweep`, which returns how many objects it has deleted, now and then, for ever."""
    while True:
        try:
            ours = await redis.run(claim_sweep(kind, while_ms=round(SWEEP_S * 1000)))
            if ours and (count := await sweep()):
                _log.info(
                    "objects that nobody needs deleted from the store of files",
                    kind=kind.name.lower(),
                    count=count,
                )
        except TOLD:
            pass  # again in some minutes
        except (MillstreamError, ApiError) as error:
            _log.warning("store of files not swept", kind=kind.name.lower(), error=str(error), again_s=LOOK_S)
        except Exception as error:  # noqa: BLE001 — whatever is in a record ends no gateway
            _log.error(
                "store of files not swept", kind=kind.name.lower(), again_s=LOOK_S, exc_info=withheld(error)
            )
        await asyncio.sleep(LOOK_S)
