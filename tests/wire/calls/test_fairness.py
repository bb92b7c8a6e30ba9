"""Jobs beyond a lane's window: in what order they enter it, and that each of them does, or ends, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.servers.servers import Server
from support.wire.desk import ROOM, TTL_MS, WINDOW, Desk
from support.wire.fair_order import FairOrder
from support.wire.windows import send

from millstream.wire import calls
from millstream.wire.keys import GROUP, LANES, Lane, QueueKeys
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import CancelOutcome, EndOutcome, SubmitOutcome

KEYS = QueueKeys("docs").shard(0)
QUANTUM = 16_384  # tokens of others before a newcomer's first job
PARKED, TENANTS = KEYS.parked(Lane.BATCH), KEYS.tenants(Lane.BATCH)


@dataclass(frozen=True, slots=True)
class One:
    """A job to be submitted."""

    tenant: str
    cost: int


jobs = st.builds(One, st.sampled_from("abc"), st.integers(1, 9))


class Shard:
    """One lane with a small window."""

    def __init__(self, server: Server, window: int) -> None:
        self.window = window
        self.redis = redis.Redis(port=server.port)
        self.redis.flushall()
        for lane in LANES:
            self.redis.xgroup_create(KEYS.lane(lane), GROUP, "0", mkstream=True)

    def submit(self, job_id: str, job: One) -> None:
        call = calls.submit(
            KEYS, job_id=job_id, lane=Lane.BATCH, payload=b"x", digest="d", version=1, deadline_ms=None,
            stream=False, max_entries=10**6, max_bytes=10**9, tenant=job.tenant, cost=job.cost,
        )  # fmt: skip
        assert send(self.redis, call, self.window).outcome is SubmitOutcome.ACCEPTED

    def take(self, count: int) -> list[str]:
        call = calls.take(KEYS, owner="A", max_entries=count, max_bytes=10**6)
        return [one.fields[1].decode() for one in send(self.redis, call, self.window)]


# --- the order ---------------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(jobs | st.integers(1, 3), max_size=60))
def test_any_order_of_submits_and_reads_is_that_of_the_model(server: Server, steps: list[One | int]) -> None:
    shard, model = Shard(server, window=2), FairOrder()
    lane: list[str] = []  # of the model, what is in it and unread
    for number, step in enumerate(steps):
        if isinstance(step, One):
            job_id = f"0-{step.tenant}-{number}"
            shard.submit(job_id, step)
            if model.places or len(lane) >= 2:
                model.park(job_id, step.tenant, step.cost)
            else:
                lane.append(job_id)
        else:
            while model.places and len(lane) < step:
                lane.append(model.serve())
            assert shard.take(step) == lane[:step]
            del lane[:step]
    while model.places:
        lane.append(model.serve())
    assert [job_id for _ in lane for job_id in shard.take(1)] == lane
    assert not shard.redis.exists(PARKED, TENANTS)


class Parked(FairOrder):
    """The model itself, whose order has to be fair."""

    def submit(self, job: One) -> str:
        return self.park(f"{job.tenant} {self.arrivals}", job.tenant, job.cost)[2]

    def drain(self) -> Iterator[str]:
        while self.places:
            yield self.serve()


@given(given_jobs=st.lists(jobs, min_size=2, max_size=40))
def test_backlogged_tenants_get_the_same_share_by_cost(given_jobs: list[One]) -> None:
    """The bound is the theorem's: while both have jobs parked, their served costs differ by no more than the
    largest job of the one and of the other."""
    parked = Parked()
    costs = {parked.submit(job): job.cost for job in given_jobs}
    largest: Counter[str] = Counter()
    for job in given_jobs:
        largest[job.tenant] = max(job.cost, largest[job.tenant])
    served: Counter[str] = Counter()
    order = []
    for job_id in parked.drain():
        order.append(job_id)
        served[job_id[0]] += costs[job_id]
        waiting = [tenant for tenant in largest if parked.parked_of(tenant)]
        for one in waiting:
            for other in waiting:
                assert abs(served[one] - served[other]) <= largest[one] + largest[other]
    assert sorted(order) == sorted(costs)
    for tenant in largest:
        own = [job_id for job_id in costs if job_id[0] == tenant]
        assert [job_id for job_id in order if job_id[0] == tenant] == own  # first in, first out


@given(backlog=st.lists(jobs, min_size=2, max_size=40), served=st.integers(1, 30))
def test_a_newcomer_waits_for_one_job_of_each_other_tenant(backlog: list[One], served: int) -> None:
    parked = Parked()
    for job in backlog:
        parked.submit(job)
    for _ in range(min(served, len(backlog) - 1)):
        parked.serve()
    newcomer = parked.submit(One("newcomer", 9))
    before = [job_id[0] for job_id in takewhile(newcomer.__ne__, parked.drain())]
    assert max(Counter(before).values(), default=0) <= 1


def test_who_was_away_has_saved_up_nothing() -> None:
    """A newcomer goes on from where the others are: its jobs take turns with theirs."""
    parked = Parked()
    for _ in range(8):
        parked.submit(One("a", 10))
    for _ in range(4):
        parked.serve()
    for _ in range(3):
        parked.submit(One("b", 10))
    assert "".join(job_id[0] for job_id in parked.drain()) == "bababaa"


@pytest.mark.parametrize(
    "given_jobs",
    [
        [One(f"t{number * 7 % 40}", 5) for number in range(40)],  # one job each: nobody is ever overtaken
        [One("", cost) for cost in (5, 1, 900, 1, 3)],  # no tenants
    ],
)
def test_where_nobody_has_more_the_queue_is_first_in_first_out(given_jobs: list[One]) -> None:
    parked = Parked()
    ids = [parked.submit(job) for job in given_jobs]
    assert list(parked.drain()) == ids


async def test_a_read_takes_no_more_out_of_the_parked_than_it_asks_for(desk: Desk) -> None:
    await desk.fill_window()
    for number in range(5):
        await desk.park(f"0-{number}", payload=b"x" * 1000)
    assert len(await desk.take(WINDOW - 2)) == WINDOW - 2
    assert len(await desk.parked()) == 5  # there were enough
    assert len(await desk.take(3)) == 3
    assert len(await desk.parked()) == 4
    assert len(await desk.take(100, max_bytes=1500)) == 2
    assert len(await desk.parked()) == 2  # the bytes were enough
    assert len(await desk.promote()) == 1  # one wakes a worker, which takes the others


@pytest.mark.parametrize("cost", [1, 20, 170, 1000, 8000])
async def test_a_newcomer_is_behind_a_quantum_of_tokens(desk: Desk, cost: int) -> None:
    """Whatever a worker has taken before, and however often upkeep has looked."""
    for number in range(240):
        await desk.submit(f"0-large-{number}", tenant="large", cost=cost, **ROOM)
        if number == 120:
            assert len(await desk.take(80)) == 80
            await desk.promote()
    await desk.submit("0-small", tenant="small", cost=cost, **ROOM)
    await desk.promote()
    before = 0
    while "0-small" not in [entry.job_id for entry in await desk.take(1)]:
        before += 1
    assert before * cost <= QUANTUM
    assert before <= WINDOW + 1


async def test_what_was_cancelled_is_not_counted_as_served(desk: Desk) -> None:
    await desk.fill_window()
    for number in range(5):
        await desk.park(f"0-other-{number}", tenant="other", cost=10)
    for number in range(9):
        await desk.park(f"0-mistake-{number}", tenant="t", cost=1000)
    for number in range(9):
        assert await desk.cancel(f"0-mistake-{number}") is CancelOutcome.CANCELLED
    await desk.park("0-again", tenant="t", cost=10)
    assert (await desk.parked()).index("0-again") == 1


# --- what else happens to a parked job ---------------------------------------------------------------------


async def test_a_parked_job_counts_and_is_a_queued_one(desk: Desk) -> None:
    await desk.fill_window()
    reply = await desk.park(payload=b"p" * 100)
    assert (reply.outcome, reply.entries) == (SubmitOutcome.ACCEPTED, WINDOW + 1)
    assert await desk.redis.zcard(desk.keys.delayed) == 0
    record = await desk.job()
    assert (record.state, record.attempt, record.owner) == (State.QUEUED, 0, "")
    assert record.submitted_ms > 0
    full = await desk.submit("0-b", lane=Lane.INTERACTIVE, max_entries=WINDOW + 1)
    assert (full.outcome, full.used_up) == (SubmitOutcome.FULL, "entries")
    full = await desk.submit("0-b", max_entries=10**6, max_bytes=reply.held_bytes)
    assert (full.outcome, full.used_up) == (SubmitOutcome.FULL, "bytes")
    conflict = await desk.submit(digest="d2", max_entries=10**6)
    assert conflict.outcome is SubmitOutcome.CONFLICT


async def end(desk: Desk, how: str) -> None:
    match how:
        case "cancel":
            assert await desk.cancel() is CancelOutcome.CANCELLED
        case "expire":
            assert await desk.expire() == ("0-a",)
        case "expire one":
            assert await desk.run(calls.expire_one(desk.keys, job_id="0-a", ttl_ms=TTL_MS))


@pytest.mark.parametrize("how", ["cancel", "expire", "expire one"])
async def test_a_parked_job_ends_at_once_and_leaves_nothing(desk: Desk, how: str) -> None:
    """At maxmemory, too."""
    ids = await desk.fill_window()
    await desk.park(deadline_ms=1)
    await desk.park("0-b", tenant="b")
    await desk.redis.config_set("maxmemory", "1")
    await end(desk, how)
    assert await desk.parked() == ["0-b"]
    assert [(one.cursor, one.kind) for one in await desk.log()] == [("0-1", "e")]
    before = await desk.state()
    if how == "cancel":
        assert await desk.cancel() is CancelOutcome.CANCELLED
    else:
        assert await desk.expire() == ()
    assert await desk.state() == before
    assert await desk.run(calls.forget(desk.keys, job_id="0-a")) == calls.Forgotten(True)
    assert await desk.cancel("0-b") is CancelOutcome.CANCELLED
    assert not await desk.redis.exists(PARKED, TENANTS, desk.keys.delayed)
    await desk.redis.config_set("maxmemory", "0")
    for entry in await desk.take():
        assert await desk.done(entry) is EndOutcome.OK
    assert not await desk.redis.exists(*(desk.keys.job(job_id) for job_id in ["0-a"]))
    assert {(await desk.job(job_id)).state for job_id in ids} == {State.COMPLETED}
    await desk.audit_idle()


async def assert_refused_at_maxmemory(desk: Desk) -> None:
    await desk.redis.config_set("maxmemory", "1")
    before = await desk.state()
    reply = await desk.submit("0-new", max_entries=10**6)
    assert (reply.outcome, reply.used_up) == (SubmitOutcome.FULL, "memory")
    assert await desk.state() == before
    await desk.redis.config_set("maxmemory", "0")


async def test_at_maxmemory_nobody_parks_and_what_is_parked_is_taken(desk: Desk) -> None:
    await desk.fill_window()
    await assert_refused_at_maxmemory(desk)  # it would be the first
    await desk.park()
    await desk.park("0-b")
    await assert_refused_at_maxmemory(desk)
    await desk.redis.config_set("maxmemory", "1")
    assert len(await desk.take(WINDOW)) == WINDOW
    assert [entry.job_id for entry in await desk.take()] == ["0-a", "0-b"]
    assert not await desk.redis.exists(PARKED, TENANTS)


# --- trouble -----------------------------------------------------------------------------------------------


async def test_a_parked_job_that_is_named_as_a_retry_keeps_its_place(desk: Desk) -> None:
    """By hand: it must not enter the lane twice."""
    await desk.fill_window()
    await desk.park()
    await desk.redis.zadd(desk.keys.delayed, {"0-a": 1})
    assert await desk.promote() == ()
    assert await desk.redis.zcard(desk.keys.delayed) == 0
    assert await desk.parked() == ["0-a"]
    await desk.take(WINDOW)
    assert await desk.promote() == ("0-a",)


async def test_places_that_are_nobodys_are_passed_over(desk: Desk) -> None:
    await desk.fill_window()
    await desk.park()
    await desk.redis.rpush(desk.keys.job("0-damaged"), "no hash")
    garbage = {
        b"0000000000000000 0-damaged": 0, b"": 0, b"no place": 0, b"0000000000000000 0-gone": 0,
        b"0000000000000009 0-a": 0,
    }  # fmt: skip
    await desk.redis.zadd(PARKED, garbage | {b"%016d 0-x" % number: 0 for number in range(300)})
    await desk.take(WINDOW)
    taken: list[str] = []
    while await desk.redis.exists(PARKED):
        taken += [entry.job_id for entry in await desk.take(100)]
    assert taken == ["0-a"]


async def test_tenants_with_nothing_parked_are_forgotten_above_a_bound(desk: Desk) -> None:
    await desk.fill_window()
    await desk.park(tenant="mine", cost=7)
    await desk.redis.hset(TENANTS, mapping={f"=t{number}": "9 0" for number in range(5000)})
    await desk.promote()
    assert await desk.redis.hgetall(TENANTS) == {b"@n": b"1", b"=mine": b"7 1"}
