"""Sends submits to the server, with or without a wait for their durability."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from millstream.client.session.session import Session
from millstream.wire.calls import ScriptCall
from millstream.wire.calls.scripts import run_many_then
from millstream.wire.connection import is_cluster
from millstream.wire.connection.slots import places_by
from millstream.wire.state.durability import Reached, Wait, check_durability

R = TypeVar("R")


class DurableWrites:
    """The writes of one session with one durability."""

    def __init__(self, session: Session, wait: Wait) -> None:
        self.wait = wait
        self._session = session
        self._checked = not wait.command  # the server supports it

    async def check(self) -> None:
        """Check the server before the first write. Raises InvalidRequest if it does not support the
        durability.
        """
        if not self._checked:
            with self._session.reach():
                await check_durability(self._session.patient, self.wait)
            self._checked = True

    async def run_many(self, requests: Sequence[ScriptCall[R]]) -> list[tuple[R | Exception, Reached]]:
        """Each call's outcome, and its durability. Raises Unavailable; then all may be sent again."""
        with self._session.reach():
            replies = await self._send(requests)
        if any(isinstance(behind, Exception) for _, behind in replies):
            self._checked = False  # no longer supported: the next submit is refused before it writes
        return [(reply, self.wait.read(behind)) for reply, behind in replies]

    async def _send(self, requests: Sequence[ScriptCall[R]]) -> list[tuple[R | Exception, Any]]:
        if not self.wait.command:
            return await run_many_then(self._session.redis, requests, ())
        redis = self._session.patient
        if not is_cluster(redis):
            return await run_many_then(redis, requests, self.wait.command)
        replies: dict[int, tuple[R | Exception, Any]] = {}
        async with asyncio.TaskGroup() as group:
            # the keys of a shard share one hash tag
            shards = places_by(request.keys[0].partition("}")[0] for request in requests)
            sent = [
                group.create_task(self._send_to_shard([requests[i] for i in places])) for places in shards
            ]
        for places, done in zip(shards, sent, strict=True):
            replies |= zip(places, done.result(), strict=True)
        return [replies[i] for i in range(len(requests))]

    async def _send_to_shard(self, requests: Sequence[ScriptCall[R]]) -> list[tuple[R | Exception, Any]]:
        """In a Cluster: a wait covers the node of the calls before it. A failed node fails only its own
        calls.
        """
        try:
            return await run_many_then(self._session.patient, requests, self.wait.command)
        except (RedisError, OSError) as error:
            return [(error, None)] * len(requests)
