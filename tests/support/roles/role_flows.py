"""What producers, workers, observers and operators do: nothing of it is refused, but what they may not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream import AccessDenied, CancelOutcome, JobCancelled, JobExpired, JobFailed, State
from millstream.client.jobs.wait_jobs import FEW_JOBS
from millstream.client.session.options import ClientOptions
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, LANES
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.state.queue_counts import first_unread
from millstream.wire.state.queue_info import PubSub
from support.roles.signing_in import refusals, signed_in
from support.servers.secured import SecuredServer, listed
from support.wire.dead_letters import bury
from support.wire.flood import submit_all
from support.workers.counting_worker import counted, streamed_text, until, until_running
from support.workers.hand_worker import hand_worker
from support.workers.work import LANE, SHARD, Work, outcome, rest_of


async def jobs_live_and_end(secured: SecuredServer, work: Work, folder: Path, pubsub: PubSub) -> None:
    work.hold(5)
    options = ClientOptions(pubsub=pubsub, shards=12)  # shard numbers of one and of two digits
    async with signed_in(secured, "producer", options) as client:
        early = await client.submit("w1", max_tokens=3)  # it creates the queue
        async with work(result_cache=2**20):
            equal = [await outcome(client, "w1", 3, temperature=0.0) for _ in range(13)]
            assert any(result.cached for result in equal)  # two of a shard at least
            assert (await client.wait(early.id, timeout_s=30)).text == counted(2, 3)
            assert (await client.status(early.id)).state is State.COMPLETED
            ids = await submit_all(client, [{"prompt": "w1", "max_tokens": 2}] * 20)
            for _ in range(2):  # the second time it asks for the sizes of their results first
                assert len(await client.wait_many(ids, timeout_s=30)) == 20
            slow = await client.submit("w10", max_tokens=9, stream=True)
            events = client.stream(slow.id)
            text = (await anext(events)).text
            stopped = await client.submit("w20", max_tokens=9)
            late = await client.submit("w30", max_tokens=9, deadline_s=0.3)
            await until_running(client, stopped)
            assert await client.cancel(stopped.id) is CancelOutcome.REQUESTED
            with pytest.raises(JobExpired):
                await client.wait(late.id, timeout_s=30)
            with pytest.raises(JobCancelled):
                await client.wait(stopped.id, timeout_s=30)
            work.go(5)
            assert text + await rest_of(events) == counted(11, 9)
        waiting = await client.submit("w1", max_tokens=3, deadline_s=60)
        assert await client.cancel(waiting.id) is CancelOutcome.CANCELLED
        overdue = await client.submit("w1", max_tokens=3, deadline_s=0.001)
        with pytest.raises(JobExpired):  # nobody else is there to end it
            await client.wait(overdue.id, timeout_s=30)
    assert refusals(secured) == []


async def a_worker_takes_over_drains_and_buries(secured: SecuredServer, work: Work, folder: Path) -> None:
    work.hold(5)
    async with signed_in(secured, "producer") as client:
        with work.process() as dead:
            lost = await client.submit("w1", max_tokens=9, stream=True)
            await until_running(client, lost)
            dead.kill()

            async def begun_again() -> bool:
                return (await client.status(lost.id)).attempt == 2

            async with work(grace_s=0):
                await until(begun_again)
        work.go(5)  # the second one has given it back
        async with work(poison=666, engine_restarts=9):
            assert (await client.wait(lost.id, timeout_s=30)).text == counted(2, 9)
            with pytest.raises(JobFailed, match="died"):
                await outcome(client, "w664", 9)
            with secured.as_admin() as admin:
                admin.xadd(LANE, {"what": "is this"})
                await until(lambda: bool(admin.xlen(SHARD.dead) == 2))
        async with Endpoint.of(secured.login("worker")).commands("chore") as redis:  # once a minute
            for lane in LANES:
                for row in await redis.xinfo_consumers(SHARD.lane(lane), GROUP):
                    name = row["name"].decode()
                    await calls.run(redis, calls.drop_consumer(SHARD, lane=lane, consumer=name))
        await work.burst()
    assert refusals(secured) == []


async def an_observer_looks(secured: SecuredServer, work: Work, folder: Path) -> None:
    async with signed_in(secured, "producer") as client:
        async with work() as worker:
            done = await client.submit("w1", max_tokens=3)
            await client.wait(done.id, timeout_s=30)
            with secured.as_admin() as admin:
                admin.xadd(SHARD.dead, {"id": done.id, "reason": "a test's"})
            for role in ("observer", "producer", "worker"):  # who takes which versions, whether anybody does
                async with Endpoint.of(secured.login(role)).commands(role) as redis:
                    assert [one.name for one in await read_workers(redis, SHARD)] == [worker.service.name]
        queued = await client.submit("w1", deadline_s=0.001)
    async with Endpoint.of(secured.login("observer")).commands("observer") as redis:
        assert await redis.xlen(LANE) == 1
        assert await first_unread(redis, LANE) is not None
        assert await calls.scan_pending(redis, SHARD, lane="batch", start="-", count=10) == []
        assert await redis.zcard(SHARD.delayed) == 0
        assert await redis.zcard(SHARD.parked("batch")) == 0
        assert int(await redis.get(SHARD.held_bytes)) > 0
    # It may not subscribe: it waits as long for that as for an answer, and polls.
    async with signed_in(secured, "observer", ClientOptions(timeout_s=1)) as client:
        assert [letter.job_id async for letter in client.dead_letters()] == [done.id]
        assert refusals(secured) == []
        assert (await client.result(done.id)).text == counted(2, 3)
        others = [f"0-not-there-{number}" for number in range(FEW_JOBS)]
        assert len(await client.wait_many([done.id, *others], timeout_s=30)) == 1 + FEW_JOBS
        async with asyncio.timeout(10):
            assert await streamed_text(client, done.id) == counted(2, 3)
        # overdue; it is not for an observer to end it
        assert (await client.status(queued.id)).state is State.QUEUED


async def an_operator_looks_after_dead_letters(secured: SecuredServer, work: Work, folder: Path) -> None:
    async with (
        hand_worker(secured.login("admin")) as worker,
        signed_in(secured, "producer", ClientOptions(durability_timeout_s=0.05)) as producer,
        signed_in(secured, "operator") as operator,
    ):
        for prompt in ("a", "b"):
            await producer.submit(prompt, id=prompt, durability="replicas")
            await bury(await worker.take())
        assert [letter.job_id async for letter in operator.dead_letters()] == ["0-b", "0-a"]
        assert (await operator.requeue("0-a")).created
        await operator.drop_dead("0-b")
        assert await producer.forget("0-a")
        assert refusals(secured) == []
        with pytest.raises(AccessDenied):
            await anext(producer.dead_letters())


async def submitted_to_disk(secured: SecuredServer, work: Work, folder: Path) -> None:
    if "waitaof" not in listed(secured, "producer"):  # Redis 7.0 has no such command
        return
    with secured.as_admin() as admin:
        admin.config_set("appendonly", "yes")
        async with signed_in(secured, "producer") as client:
            assert (await client.submit("w1", durability="aof")).durable
        admin.config_set("appendonly", "no")
    assert refusals(secured) == []
