"""A server comes back without the last writes that it had acknowledged (the tail of its append-only file).

The file is cut where it ended at some moment of the test, and in the middle of the write that came next: a
script is all there or not at all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.wire.desk import Desk

from millstream.wire.calls import Claim
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import AppendOutcome, EndOutcome


class Journal:
    """The append-only file of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def file(self) -> Path:
        (found,) = self.server.folder.glob("appendonlydir/*.incr.aof")
        return found

    @property
    def size(self) -> int:
        return self.file.stat().st_size

    async def come_back(self, client: redis.asyncio.Redis, size: int) -> None:
        """Crash, and start again with the first `size` bytes."""
        self.server.kill()
        assert size <= self.size
        os.truncate(self.file, size)
        self.server.start()
        await client.connection_pool.disconnect()


@pytest.fixture
def journal(lasting: Server) -> Journal:
    return Journal(lasting)


@pytest.fixture
async def desk(journal: Journal) -> AsyncIterator[Desk]:
    async with redis.asyncio.Redis.from_url(journal.server.url) as client:
        yield await Desk(client).open()


@pytest.mark.parametrize("torn", [0, 30])
async def test_append_tells_where_the_log_ends_now(desk: Desk, journal: Journal, torn: int) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    size = journal.size
    for seq in (2, 3):
        await desk.append(held, seq)
    await journal.come_back(desk.redis, size + torn)

    reply = await desk.append(held, 4)
    assert (reply.outcome, reply.last_seq) == (AppendOutcome.GAP, 1)
    for delta in (b"delta", None):
        assert await desk.finish(held, 4, delta=delta) is EndOutcome.GAP
    for seq in (2, 3, 4):
        assert (await desk.append(held, seq)).outcome is AppendOutcome.OK
    assert await desk.finish(held, 4, delta=b"delta") is EndOutcome.OK
    assert [entry.cursor for entry in await desk.log()] == ["1-0", "1-1", "1-2", "1-3", "1-4", "1-5"]
    await desk.audit_idle()


async def test_a_reader_ahead_of_the_log_sees_the_marker_rewind(desk: Desk, journal: Journal) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    size = journal.size
    await desk.append(held, 2)
    cursor = (await desk.log())[-1].cursor
    await journal.come_back(desk.redis, size)

    assert (cursor, (await desk.log())[-1].cursor) == ("1-2", "1-1")
    again: list[Claim] = []

    async def take_over() -> None:
        again.append(await desk.take_over(held))

    heard = await desk.messages(take_over)
    assert heard == [(desk.keys.events(held.job_id), b"2-1 m ")]  # after 1-2: the log goes on from 1
    assert (await desk.append(again[0], 2, b"second try")).outcome is AppendOutcome.OK
    assert (await desk.append(held, 2)).outcome is AppendOutcome.FENCED


async def test_an_attempt_that_the_server_forgot_is_fenced(desk: Desk, journal: Journal) -> None:
    await desk.submit()
    size = journal.size
    entry = await desk.deliver()
    await desk.start(entry)
    held = Claim("0-a", entry, "A", 1)
    await journal.come_back(desk.redis, size)

    assert (await desk.append(held, 1)).outcome is AppendOutcome.FENCED
    assert await desk.finish(held) is EndOutcome.FENCED
    assert not (await desk.start(entry)).started
    again = await desk.deliver("B")
    assert (again, (await desk.start(again, "B")).attempt) == (entry, 1)


async def test_a_forgotten_finish_is_finished_again(desk: Desk, journal: Journal) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    size = journal.size
    await desk.finish(held, 2, delta=b"last")
    await journal.come_back(desk.redis, size)

    assert (await desk.job()).state is State.RUNNING
    assert await desk.finish(held, 2, delta=b"last") is EndOutcome.OK
    assert [entry.cursor for entry in await desk.log()] == ["1-0", "1-1", "1-2", "1-3"]
    await desk.audit_idle()
