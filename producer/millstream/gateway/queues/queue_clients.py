"""Keeps a client for each queue, which knows the queue's shape, what its workers take and how fast it
empties.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from millstream.client.async_client import AsyncClient
from millstream.client.jobs import wait_jobs
from millstream.client.session.ended_job import EndedJob, result_without_choices
from millstream.client.session.queue_status import QueueStatus, queue_status
from millstream.errors import JobError, NotFound, ProtocolError
from millstream.openai.prompt_list import joined_usage
from millstream.wire.messages.job_messages import State, Usage
from millstream.wire.messages.record import log_entry, merged_choices

READ_AT_ONCE = 8  # records with their answers, for their usage alone
LOG_ENTRIES = 16  # of one job in one read: as many seconds of a worker


class QueueClient(AsyncClient):
    """A client that returns ended jobs as they are stored, to be read beside the loop."""

    def ended(
        self, job_ids: Iterable[str], timeout_s: float | None = None
    ) -> AsyncGenerator[tuple[str, EndedJob | JobError], None]:
        """Yields as `as_completed`, but unread; an error for a job that does not exist, or is late."""
        return wait_jobs.ended(self._jobs, job_ids, timeout_s)

    async def states(self, own_ids: Sequence[str]) -> list[State | None]:
        """Returns the jobs' states; None for one that does not exist."""
        return await self._jobs.states(own_ids)

    async def queue_info(self) -> QueueStatus:
        """Returns the queue's status without its tenants, whom a gateway shows to nobody."""
        return await queue_status(self._jobs, tenants=False)

    async def usage(self, job_ids: Sequence[str]) -> Usage:
        """Returns the usage of ended jobs together. Raises NotFound, ProtocolError."""
        usages = []
        for start in range(0, len(job_ids), READ_AT_ONCE):
            some = job_ids[start : start + READ_AT_ONCE]
            for job_id, record in zip(some, await self._jobs.read(some), strict=True):
                if record is None:
                    raise NotFound(job_id)
                result = result_without_choices(record)
                usages.append(result.usage if result is not None else Usage())
        return joined_usage(usages)

    async def new_tokens(self, cursors: Mapping[str, str | None]) -> dict[str, tuple[str, int]]:
        """Counts the output tokens in the jobs' logs behind these cursors, a part of a long log at once.
        Returns the next cursor and the number for each job that has any; damaged logs are left out.
        """
        keys = await self._jobs.keys_of(cursors)
        session = self._jobs.session
        with session.reach():
            async with session.redis.pipeline(transaction=False) as pipeline:
                for job_id, cursor in cursors.items():
                    first = "-" if cursor is None else f"({cursor}"
                    pipeline.xrange(keys[job_id].tokens(job_id), first, "+", LOG_ENTRIES)
                replies = await pipeline.execute(raise_on_error=False)
        found = {}
        for job_id, rows in zip(cursors, replies, strict=True):
            with contextlib.suppress(ProtocolError):
                if not isinstance(rows, Exception) and (log := [log_entry(*row) for row in rows]):
                    tokens = sum(len(choice.token_ids) for choice in merged_choices(log))
                    found[job_id] = log[-1].cursor, tokens
        return found


class QueueClients(dict[str, QueueClient]):
    """Clients by queue. Each is made when first used; all share one client's connections."""

    def __init__(self, client: QueueClient) -> None:
        super().__init__()
        self._client = client

    def __missing__(self, queue: str) -> QueueClient:
        return self.setdefault(queue, self._client.with_queue(queue))

    async def aclose(self) -> None:
        await self._client.aclose()
