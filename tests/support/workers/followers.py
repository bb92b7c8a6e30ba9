"""Readers that follow streams beside a test, and what they must have in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream import AsyncClient, Result, RewindEvent, TokenEvent, Transcript
from support.workers.counting_worker import counted, until


class Follower:
    """A job's stream. What a demoted master still took is gone with it: the reader is told to rewind."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self.job_id = job_id
        self.transcript = Transcript()
        self.seqs: list[int] = []
        self.task = asyncio.ensure_future(self._read(client))

    async def _read(self, client: AsyncClient) -> None:
        async for event in client.stream(self.job_id):
            self.transcript.add(event)
            if isinstance(event, TokenEvent):
                self.seqs.append(event.seq)
            elif isinstance(event, RewindEvent):
                del self.seqs[event.seq :]


async def followed(client: AsyncClient, count: int, tokens: int, *, begun: bool = False) -> list[Follower]:
    """That many jobs of both lanes are submitted, the answer to each counts on from its number. `begun`: the
    first tokens of all have been read."""
    jobs = await client.submit_many(
        {"prompt": f"w{n + 1}", "max_tokens": tokens, "stream": True, "lane": ("interactive", "batch")[n % 2]}
        for n in range(count)
    )
    followers = [Follower(client, job.id) for job in jobs]
    if begun:
        await until(lambda: all(one.transcript.text() for one in followers))
    return followers


async def assert_whole(client: AsyncClient, followers: Sequence[Follower], tokens: int) -> None:
    """Each stream ends with its result's text, and no entry is missing or comes twice."""
    async with asyncio.timeout(60):
        await asyncio.gather(*(one.task for one in followers))
    results = await client.wait_many([one.job_id for one in followers], timeout_s=60)
    for number, one in enumerate(followers):
        result = results[one.job_id]
        assert isinstance(result, Result)
        assert result.text == one.transcript.text() == counted(number + 2, tokens)
        assert one.seqs == list(range(1, len(one.seqs) + 1))
        assert result.attempts == 1
