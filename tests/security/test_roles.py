"""Each role of `ops/users.acl` can do everything that it is for: nothing is refused while jobs live every
life that a job can have. The server's own log of refusals is asked: a script passes over some in silence.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.batches import answered, chat, files_of, finished, made
from support.commands import invoke
from support.gateway import gateway
from support.servers.monitor import watching
from support.servers.secured import LIMITED, SecuredServer, by_role, listed
from support.wire.dead_letters import bury
from support.wire.desk import TTL_MS, Desk
from support.wire.flood import submit_all
from support.wire.gateway_desk import every_batch, every_post
from support.workers.counting_worker import counted, streamed_text, until, until_running, write_tokenizer
from support.workers.hand_worker import hand_worker
from support.workers.work import LANE, SHARD, Work, outcome, rest_of

from millstream import AccessDenied, AsyncClient, CancelOutcome, JobCancelled, JobExpired, JobFailed, State
from millstream.client.queue.options import ClientOptions
from millstream.client.tracking.job_ends import FEW_JOBS
from millstream.gateway.access.server_access import ServerAccess
from millstream.gateway.files.file_catalogue import FileCatalogue
from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.calls.attempt import Keep
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, LANES, Lane, QueueKeys
from millstream.wire.state.dead import list_dead
from millstream.wire.state.heartbeat import Heartbeat, beat, read_workers
from millstream.wire.state.numbers import first_unread
from millstream.wire.state.queue_info import PubSub, open_queue, record_worker
from millstream.wire.tenant_keys import TenantKeys
from millstream.wire.versions import TAKEN

LOOKS_AT_SETTINGS = ("worker", "command", "config|get")  # it says that it could not, and goes on

PRODUCERS = {"open_queue", "submit", "cancel", "expire_one", "forget"}
OPERATORS = {"list_dead"}
BATCHES = {"create_batch", "take_batch", "hold_batch", "commit_part", "move_batch", "cancel_batch"}
POSTS = {"charge", "uncharge", "open_post", "close_post", "attend", "claim_once"}
FILES = {"add_file", "remove_file", "know_store", "claim_sweep"}
GATEWAYS = BATCHES | POSTS | FILES
DENIED = ("dead", "tenants")  # to a producer


def refusals(server: SecuredServer) -> list[tuple[str, str, str]]:
    return [entry for entry in server.denied() if entry != LOOKS_AT_SETTINGS]


def signed_in(server: SecuredServer, role: str, options: ClientOptions | None = None) -> AsyncClient:
    """Its connections have the role's name."""
    return AsyncClient(server.login(role), options=replace(options or ClientOptions(), name=role))


# test_no_role_has_a_right_that_it_does_not_use does all of it on each kind.
ON_VALKEY = pytest.mark.parametrize("roles_server", ["valkey"], indirect=True)


# --- programs ----------------------------------------------------------------------------------------------


@ON_VALKEY
@pytest.mark.parametrize("pubsub", list(PubSub))
async def test_jobs_live_and_end_between_a_producer_and_a_worker(
    secured: SecuredServer, role_work: Work, pubsub: PubSub
) -> None:
    role_work.hold(5)
    options = ClientOptions(pubsub=pubsub, shards=12)  # shard numbers of one and of two digits
    async with signed_in(secured, "producer", options) as client:
        early = await client.submit("w1", max_tokens=3)  # it creates the queue
        async with role_work(result_cache=2**20):
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
            role_work.go(5)
            assert text + await rest_of(events) == counted(11, 9)
        waiting = await client.submit("w1", max_tokens=3, deadline_s=60)
        assert await client.cancel(waiting.id) is CancelOutcome.CANCELLED
        overdue = await client.submit("w1", max_tokens=3, deadline_s=0.001)
        with pytest.raises(JobExpired):  # nobody else is there to end it
            await client.wait(overdue.id, timeout_s=30)
    assert refusals(secured) == []


@pytest.mark.slow
@ON_VALKEY
async def test_a_worker_takes_over_drains_and_buries(secured: SecuredServer, role_work: Work) -> None:
    role_work.hold(5)
    async with signed_in(secured, "producer") as client:
        with role_work.process() as dead:
            lost = await client.submit("w1", max_tokens=9, stream=True)
            await until_running(client, lost)
            dead.kill()

            async def begun_again() -> bool:
                return (await client.status(lost.id)).attempt == 2

            async with role_work(grace_s=0):
                await until(begun_again)
        role_work.go(5)  # the second one has given it back
        async with role_work(poison=666, engine_restarts=9):
            assert (await client.wait(lost.id, timeout_s=30)).text == counted(2, 9)
            with pytest.raises(JobFailed, match="died"):
                await outcome(client, "w664", 9)
            with secured.as_admin() as admin:
                admin.xadd(LANE, {"what": "is this"})
                await until(lambda: bool(admin.xlen(SHARD.dead) == 2))
        async with Endpoint.of(secured.login("worker")).commands(
            "chore"
        ) as redis:  # once a minute, by a worker
            for lane in LANES:
                for row in await redis.xinfo_consumers(SHARD.lane(lane), GROUP):
                    name = row["name"].decode()
                    await calls.run(redis, calls.drop_consumer(SHARD, lane=lane, consumer=name))
        await role_work.burst()
    assert refusals(secured) == []


@ON_VALKEY
async def test_an_observer_sees_lengths_ages_workers_dead_letters_and_states(
    secured: SecuredServer, role_work: Work
) -> None:
    async with signed_in(secured, "producer") as client:
        async with role_work() as worker:
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


@pytest.mark.parametrize("role", ["producer", "operator", "observer"])
async def test_each_role_sees_of_the_queue_what_it_may(secured: SecuredServer, role: str) -> None:
    """Whose jobs wait is no producer's business, nor how many were given up."""
    async with (
        hand_worker(secured.login("admin")) as worker,
        AsyncClient(secured.login(role)) as client,
    ):
        desk = await Desk(worker.redis, SHARD).open()
        await desk.fill_window()
        await desk.park("0-parked", tenant="acme")
        await desk.run(calls.join(SHARD, owner=worker.name))
        await desk.run(beat(SHARD, Heartbeat(worker.name, "m", oldest_batch_ms=5), ttl_ms=TTL_MS))
        await desk.take(1, owner=worker.name)
        status = await client.queue_info()
        assert [(lane.waiting, lane.running) for lane in status.lanes] == [(0, 0), (128, 1)]
        assert status.lanes[1].oldest_s is not None
        assert [one.name for one in status.workers or ()] == [worker.name]
        assert (status.held_bytes or 0) > 0
        await worker.redis.delete(SHARD.worker(worker.name))
        unserved = await client.queue_info()
    reason = "needs the operator or observer role"
    if role == "producer":
        assert (status.tenants, status.dead, status.unread) == (None, None, dict.fromkeys(DENIED, reason))
        assert {entry[0] for entry in refusals(secured)} == {"producer"}
    else:
        assert (status.tenants, status.dead, status.unread) == ({"acme": 1}, 0, {})
    assert (unserved.lanes[1].oldest_s is None) == ("oldest_s" in unserved.unread) == (role != "observer")


@ON_VALKEY
async def test_an_operator_looks_after_dead_letters(secured: SecuredServer) -> None:
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


@ON_VALKEY
async def test_a_gateway_answers(secured: SecuredServer, role_work: Work) -> None:
    """With an admin's key: requests with limits, repeated and withdrawn ones, models, backlog."""
    limits = ("--tokens-per-min", 10**6, "--max-enqueued-tokens", 1000)
    made = await asyncio.to_thread(
        invoke, "keys", "add", "acme", *limits, "--redis-url", secured.login("admin")
    )
    ask = {"model": "default", "prompt": "w1", "max_tokens": 3}
    once = {"extra_headers": {"Idempotency-Key": "one"}}
    async with role_work():
        with gateway(secured.login("gateway")) as door:
            async with door.client(made.stdout.strip(), retries=9) as client:  # until the worker is up
                for more in ({}, once, once, {"extra_headers": {"X-Stainless-Retry-Count": "1"}}):
                    answer = await client.completions.create(**ask, **more)
                    assert answer.choices[0].text == counted(2, 3)
                stream = await client.completions.create(**ask, stream=True)
                assert "".join([chunk.choices[0].text async for chunk in stream]) == counted(2, 3)
                too_many = ask | {"max_tokens": 5000, "extra_headers": {"Idempotency-Key": "two"}}
                with pytest.raises(openai.RateLimitError):
                    await client.completions.create(**too_many)
                assert [one.id async for one in client.models.list()] == ["default"]
                await files_live_and_end(client)
                async with httpx2.AsyncClient(base_url=door.url, headers=client.auth_headers) as http:
                    backlog = (await http.get("/backlog")).json()
                assert backlog["queues"]["default"]["workers"] == 1
    assert {entry[2] for entry in refusals(secured)} <= {
        SHARD.dead,
        SHARD.tenants("interactive"),
        SHARD.tenants("batch"),
    }


async def files_live_and_end(client: openai.AsyncOpenAI) -> None:
    made = [await client.files.create(file=b"x", purpose="user_data") for _ in range(3)]
    for order in ("asc", "desc"):
        assert len([one async for one in client.files.list(limit=1, order=order)]) == 3
    for one in made:
        assert (await client.files.content(one.id)).content == b"x"
        await client.files.delete(one.id)


@ON_VALKEY
async def test_a_gateway_runs_batches(
    secured: SecuredServer, role_work: Work, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [chat(number, f"w{number}", 2) for number in range(1, 4)]
    limits = ("--max-enqueued-tokens", 10_000, "--redis-url", secured.login("admin"))
    key = (await asyncio.to_thread(invoke, "keys", "add", "acme", *limits)).stdout.strip()
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("chat"), chat=True)
    with gateway(secured.login("gateway")) as door:
        async with role_work(tokenizer=tokenizer), door.client(key) as client:
            done = await finished(client, (await made(client, lines)).id)
            assert done.status == "completed"
            output, _ = await files_of(client, done)
            assert answered(output) == {f"r{number}": counted(number + 1, 2) for number in range(1, 4)}
            invalid = await finished(client, (await made(client, [b"{"])).id)
            assert invalid.status == "failed"
            with secured.as_admin() as admin:
                admin.delete(TenantKeys("acme").batch(invalid.id))  # as if it had expired
            assert [one.id async for one in client.batches.list(limit=1)] == [done.id]
            with pytest.raises(openai.BadRequestError):
                await client.batches.list(after=invalid.id)
    assert refusals(secured) == []


# --- scripts -----------------------------------------------------------------------------------------------


class RolesDesk(Desk):
    """Sends each script as the role that it belongs to."""

    def __init__(self, producer: Any, worker: Any, operator: Any, gateway: Any) -> None:
        super().__init__(worker, SHARD)
        self.senders = dict.fromkeys(PRODUCERS, producer) | dict.fromkeys(OPERATORS, operator)
        self.senders |= dict.fromkeys(GATEWAYS, gateway)
        self.sent: set[str] = set()

    async def run(self, call: ScriptCall[Any]) -> Any:
        self.sent.add(call.script.name)
        return await calls.run(self.senders.get(call.script.name, self.redis), call)


@ON_VALKEY
async def test_every_script_of_the_protocol_runs_as_its_role(secured: SecuredServer) -> None:
    """Also those that programs seldom need. A new script has to be given to a role, and tried here."""
    async with (
        Endpoint.of(secured.login("producer")).commands("producer") as producer,
        Endpoint.of(secured.login("worker")).commands("worker") as worker,
        Endpoint.of(secured.login("operator")).commands("operator") as operator,
        Endpoint.of(secured.login("gateway")).commands("gateway") as gateway,
    ):
        desk = RolesDesk(producer, worker, operator, gateway)
        await open_queue(worker, "default")
        await desk.run(record_worker(QueueKeys("default"), TAKEN))
        await desk.run(calls.join(SHARD, owner="A"))
        await desk.run(beat(SHARD, Heartbeat("A", "m"), ttl_ms=TTL_MS))
        await every_end(desk)
        await every_post(desk)
        await every_batch(desk, gateway)
        await desk.run(calls.drop_consumer(SHARD, lane="batch", consumer="A"))
        await desk.sweep_stale()
        access = ServerAccess(secured.login("gateway"))
        assert await FileCatalogue(access).which_exist([("acme", "file-1")]) == set()
        await access.aclose()
    assert desk.sent | {"open_queue"} == scripts()
    assert refusals(secured) == []


async def every_end(desk: Desk) -> None:
    """Jobs by all ways to an end."""
    held = await desk.begin("0-finish", deadline_ms=2**50)
    assert await desk.submit("0-finish", deadline_ms=2**50)  # again
    await desk.append(held, 1)
    await desk.run(desk.renewing((held.job_id, held.entry_id)))
    await desk.run(desk.releasing(held))
    again = await desk.take_over(Claim(held.job_id, held.entry_id, "released", held.attempt))
    await desk.run(desk.isolating(again))
    await desk.finish(again, 2, delta=b"d")
    for digest in ("kept", "again"):  # with room for one
        await desk.finish(await desk.begin(f"0-{digest}"), keep=Keep(digest, 300))
    assert (await desk.run(calls.forget(SHARD, job_id="0-again"))).deleted
    assert not await desk.redis.exists(SHARD.cached("kept"), SHARD.cached("again"))
    parked = await desk.begin("0-retry")
    await desk.run(desk.retrying(parked))
    assert await desk.promote() == ("0-retry",)
    entry = await desk.deliver()
    await desk.run(desk.giving_back(entry, job_id="0-retry"))
    await desk.run(desk.burying(await desk.begin("0-bury")))
    await desk.cancel((await desk.begin("0-cancelled")).job_id)
    await desk.begin("0-late", deadline_ms=1)
    await desk.expire()
    await desk.begin("0-lazy", deadline_ms=1)
    assert await desk.run(calls.expire_one(desk.keys, job_id="0-lazy", ttl_ms=TTL_MS))
    await desk.submit("0-lost")
    await desk.run(calls.look(SHARD, job_id="0-lost", attempt=0, seq=0, result=b"r", ttl_ms=TTL_MS))
    await desk.redis.xdel(SHARD.lane(desk.lane), (await desk.redis.xrange(SHARD.lane(desk.lane)))[-1][0])
    assert await desk.run(calls.look(SHARD, job_id="0-lost", attempt=0, seq=0, result=b"r", ttl_ms=TTL_MS))
    await desk.submit("0-queued")
    await desk.cancel("0-queued")
    assert (await desk.run(calls.forget(SHARD, job_id="0-queued"))).deleted
    await desk.fill_window()
    for job_id in ("0-served", "0-promoted", "0-cancelled-parked", "0-expired-parked", "0-lazy-parked"):
        await desk.park(job_id, tenant=job_id, deadline_ms=1 if "-parked" in job_id else None)
    await desk.cancel("0-cancelled-parked")
    assert await desk.run(calls.expire_one(desk.keys, job_id="0-lazy-parked", ttl_ms=TTL_MS))
    await desk.expire()
    for _ in range(4):
        assert await desk.take(40)
        await desk.promote()
    assert await desk.parked() == []
    [letter] = await desk.run(list_dead(SHARD, shard=0, before=None, count=9, most_bytes=0))
    assert letter.job_id == "0-bury"
    desk.lane = Lane.INTERACTIVE
    await desk.redis.xadd(SHARD.lane(desk.lane), {"what": "is this"})
    await desk.run(
        calls.discard(
            SHARD, lane=desk.lane, owner="A", entry_id=await desk.deliver(), reason="garbage", max_dead=9
        )
    )


def scripts() -> set[str]:
    folder = Path(calls.__file__).parents[1] / "lua"
    return {path.stem for path in folder.glob("*.lua")}


# --- rights ------------------------------------------------------------------------------------------------

# What only some ways of connecting send: test_rights.py.
BY_PLACE = {"select", "role", "cluster|slots", "asking"}


async def submitted_to_disk(secured: SecuredServer) -> None:
    if "waitaof" not in listed(secured, "producer"):  # Redis 7.0 has no such command
        return
    with secured.as_admin() as admin:
        admin.config_set("appendonly", "yes")
        async with signed_in(secured, "producer") as client:
            assert (await client.submit("w1", durability="aof")).durable
        admin.config_set("appendonly", "no")
    assert refusals(secured) == []


@pytest.mark.slow
async def test_no_role_has_a_right_that_it_does_not_use(
    secured: SecuredServer,
    role_work: Work,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr("millstream.wire.connection.pubsub_connection.PING_AFTER_S", 0.05)  # of silence
    with watching(secured.login("admin")) as watch:
        for flow in (
            test_every_script_of_the_protocol_runs_as_its_role(secured),
            test_jobs_live_and_end_between_a_producer_and_a_worker(secured, role_work, PubSub.PLAIN),
            test_jobs_live_and_end_between_a_producer_and_a_worker(secured, role_work, PubSub.SHARDED),
            test_a_worker_takes_over_drains_and_buries(secured, role_work),
            test_an_observer_sees_lengths_ages_workers_dead_letters_and_states(secured, role_work),
            test_an_operator_looks_after_dead_letters(secured),
            test_a_gateway_answers(secured, role_work),
            test_a_gateway_runs_batches(secured, role_work, tmp_path_factory),
            submitted_to_disk(secured),
        ):
            await flow
            secured.flush()
        used: dict[str, set[str]] = {role: set(BY_PLACE) for role in LIMITED}
        for role, commands in by_role(watch).items():
            used.setdefault(role, set()).update(words[0] for words in commands)
            used[role].update("|".join(words) for words in commands)
    for role in ("operator", "gateway"):  # which are producers, too
        used[role] |= used["producer"]
    for role in LIMITED:
        assert listed(secured, role) - used[role] == set(), role
