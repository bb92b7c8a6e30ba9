"""Output tokens of rows under way, read from the logs that a worker writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.servers.servers import Server
from support.workers.hand_worker import hand_worker

from millstream.gateway.batches.records.batch_catalogue import WrittenLines
from millstream.gateway.batches.records.batch_lease import BatchLease
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.batches.records.line_set import LineSet
from millstream.gateway.batches.records.open_batches import OpenBatch
from millstream.gateway.batches.runner.finished_rows import FinishedRow
from millstream.gateway.batches.runner.live_tokens import MOST_JOBS, LiveTokens
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.queues.queue_clients import LOG_ENTRIES, READ_AT_ONCE, QueueClient
from millstream.gateway.redis.batch_calls import PartCounts
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.messages.job_messages import Usage


async def test_tokens_are_counted_once(valkey: Server) -> None:
    live = LiveTokens()
    async with QueueClient(valkey.url) as client, hand_worker(valkey.url) as worker:
        names = [(await client.submit("x")).id for _ in range(3)]
        live.begin(client, names)
        await live.look()
        assert live.total == 0  # none has begun
        first, second = [await worker.take() for _ in range(2)]
        await first.say("abc")
        await second.say("de")
        await live.look()
        await live.look()
        assert live.total == 5
        await worker.redis.set(worker.keys.tokens(names[2]), "no log")  # it harms no other
        for _ in range(LOG_ENTRIES + 3):
            await first.say("f")
        await live.look()
        assert live.total == 5 + LOG_ENTRIES  # a long log is read in parts
        await live.look()
        assert live.total == 5 + LOG_ENTRIES + 3
        live.end(first.id)
        assert live.total == 2


async def test_the_usage_of_many_jobs_is_read_in_parts(valkey: Server) -> None:
    async with QueueClient(valkey.url) as client, hand_worker(valkey.url) as worker:
        names = [(await client.submit("x")).id for _ in range(READ_AT_ONCE + 1)]
        for _ in names:
            await (await worker.take()).end(last="ab")
        assert await client.usage(names) == Usage(prompt_tokens=len(names), output_tokens=2 * len(names))


async def test_the_jobs_read_in_one_look_are_bounded(valkey: Server) -> None:
    live = LiveTokens()
    asked: list[int] = []

    class Counting(QueueClient):
        async def new_tokens(self, cursors: object) -> dict[str, tuple[str, int]]:
            asked.append(len(list(cursors)))  # type: ignore[call-overload]
            return {}

    async with Counting(valkey.url) as client:
        live.begin(client, map(str, range(2000)))
        await live.look()
    assert asked == [MOST_JOBS]


RECORD = {
    "status": "in_progress", "endpoint": "e", "input_file_id": "f", "completion_window": "24h",
    "created_s": "1", "expires_s": "4000000000", "charge": "", "holder": "", "until_ms": "0", "total": "3",
}  # fmt: skip


async def test_tokens_that_are_committed_are_told_no_more(access: GatewayRedis) -> None:
    """Nor by the renewals before the next look."""
    batch = OpenBatch("acme", "batch_1")
    key = TenantKeys(batch.tenant).batch(batch.id)
    await access.client.hset(key, mapping=RECORD)
    _, lease = await BatchLease.take(access, batch, 60.0)
    lease.live_tokens = 12
    await lease.commit(PartCounts(completed=1, output_tokens=9), [("output x 1 9", "1")], behind=0)
    assert lease.live_tokens == 3
    await lease.commit(PartCounts(completed=1, output_tokens=9), [("output y 1 9", "2")], behind=1)
    assert lease.live_tokens == 0, "the last look was before these were drawn"


def row(line: int, output_tokens: int) -> FinishedRow:
    return FinishedRow(line, RowKind.OUTPUT, b"{}\n", "completed", Usage(output_tokens=output_tokens))


async def test_rows_computed_again_are_not_told() -> None:
    """Their tokens were counted when the part that was lost was committed."""
    lost = BatchPart(RowKind.OUTPUT, "x", 2, 9)
    nothing: Any = None
    lines = LineSet()
    for number in (1, 2):
        lines.add(number)
    written = WrittenLines(LineSet(), (lost,), {lost: lines})
    batch: Any = SimpleNamespace(tenant="acme", folder="batches/batch_1")
    parts = PartWriter(batch, written, nothing, nothing, nothing)
    assert [parts.is_counted(line) for line in (1, 2, 3)] == [True, True, False]
    await parts.add(row(1, 40))
    await parts.add(row(3, 5))
    assert parts.held_tokens == 5


def test_a_damaged_number_is_no_damage_of_the_batch() -> None:
    for told, tokens in (("h 7", 7), ("h x", 0), ("h -7", 0), ("h \u0663", 0), ("h", 0), ("other 7", 0)):
        assert BatchRecord.of("acme", "b", RECORD | {"holder": "h", "live": told}).live_tokens == tokens
