"""Any order of calls by any workers, any of them repeated or late: the server and the model stay alike."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ResponseError
from support.servers.servers import Server
from support.wire.protocol_model import MAX_DEAD, RELEASED, Model
from support.wire.windows import send

from millstream.client.tracking.dead_letters import again
from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.keys import GROUP, Lane, QueueKeys, job_id_of
from millstream.wire.messages.messages import State
from millstream.wire.state.dead import DeadLetter, Place, list_dead

R = TypeVar("R")
KEYS = QueueKeys("docs").shard(0)
LANE = Lane.BATCH
TTL_MS = 600_000
PAYLOAD = b"request"

job_ids = st.sampled_from(["0-a", "0-b", "0-c"])
workers = st.sampled_from(["A", "B"])
picks = st.integers(0, 7)  # which of the things remembered, the latest first
times = st.sampled_from([1, 1, 2])  # how often a call is sent
deaths = st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 1), (3, 3)])  # in all and alone, as a worker tells them


class Protocol(RuleBasedStateMachine):
    """`entries` and `attempts` are all that workers ever learned: they act on it however old it is."""

    def __init__(self, server: Server, window: int) -> None:
        super().__init__()
        self.window = window
        self.redis = redis.Redis(port=server.port)
        self.redis.flushall()
        for lane in KEYS.lanes:
            self.redis.xgroup_create(lane, GROUP, "0", mkstream=True)
        self.model = Model(window)
        self.entries: list[tuple[str, str]] = []  # (job id, entry), as delivered
        self.attempts: list[Claim] = []
        self.names = ["0-a", "0-b", "0-c"]  # of all jobs there ever were
        self.starts = 0

    def send(self, call: ScriptCall[R]) -> R:
        return send(self.redis, call, self.window)

    def entry(self, pick: int) -> tuple[str, str]:
        return self.entries[-1 - pick % len(self.entries)]

    def attempt(self, pick: int) -> Claim:
        return self.attempts[-1 - pick % len(self.attempts)]

    def name(self, pick: int) -> str:
        return self.names[-1 - pick % len(self.names)]

    # --- producers ---------------------------------------------------------------------------------------

    @rule(
        job_id=job_ids,
        digest=st.sampled_from(["d1", "d1", "d2"]),
        overdue=st.booleans(),
        tenant=st.sampled_from(["", "b"]),
        cost=st.sampled_from([1, 5]),
        times=times,
    )
    def submit(self, job_id: str, digest: str, overdue: bool, tenant: str, cost: int, times: int) -> None:
        call = calls.submit(
            KEYS, job_id=job_id, lane=LANE, payload=PAYLOAD, digest=digest, version=1,
            deadline_ms=1 if overdue else None, stream=False, max_entries=1000, max_bytes=10**6,
            tenant=tenant, cost=cost,
        )  # fmt: skip
        for _ in range(times):
            outcome = self.model.submit(job_id, digest, overdue, tenant=tenant, cost=cost)
            assert self.send(call).outcome == outcome
            self.queued(outcome, job_id)

    @rule(pick=picks, times=times)
    def cancel(self, pick: int, times: int) -> None:
        job_id = self.name(pick)
        for _ in range(times):
            answer = self.send(calls.cancel(KEYS, job_id=job_id, ttl_ms=TTL_MS))
            assert answer == self.model.cancel(job_id)

    @rule(pick=picks, times=times)
    def forget(self, pick: int, times: int) -> None:
        job_id = self.name(pick)
        for _ in range(times):
            answer = self.send(calls.forget(KEYS, job_id=job_id))
            told = answer.state or ("forgotten" if answer.deleted else "not_found")
            assert told == self.model.forget(job_id)

    @precondition(lambda self: any(job.ended for job in self.model.jobs.values()))
    @rule(pick=picks)
    def time_to_live_ends(self, pick: int) -> None:
        job_id = self.name(pick)
        job = self.model.jobs.get(job_id)
        if job and job.ended:
            self.model.forget(job_id)
            self.redis.delete(KEYS.job(job_id), KEYS.tokens(job_id))

    @precondition(lambda self: self.model.letters)
    @rule(pick=picks, times=times, whole=st.booleans())
    def requeue(self, pick: int, times: int, whole: bool) -> None:
        """The job is submitted; `whole`: then the letter goes, else whoever does it is cut off before."""
        page = self.letters()
        letter = page[pick % len(page)]
        job = again(letter)
        job_id = job_id_of(job.own_id, 1)
        call = calls.submit(
            KEYS, job_id=job_id, lane=job.lane, payload=job.payload, digest=job.digest, version=job.version,
            deadline_ms=job.deadline_ms, stream=job.stream, max_entries=1000, max_bytes=10**6,
            requeued_from=job.requeued_from,
        )  # fmt: skip
        for _ in range(times):
            outcome = self.model.submit(job_id, job.digest, False, job.requeued_from)
            assert self.send(call).outcome == outcome
            self.queued(outcome, job_id)
        if job_id not in self.names:
            self.names.append(job_id)
        if whole:
            entry = Place.of(letter).entry
            assert self.redis.xdel(KEYS.dead, entry) == 1
            del self.model.letters[entry]

    @rule(job_id=job_ids, owner=workers)
    def die(self, job_id: str, owner: str) -> None:
        """By chance alone, few jobs come as far as to be buried."""
        self.submit(job_id, "d1", False, "", 1, 1)
        self.deliver(owner)
        if self.entries:
            self.start(0, owner, 1)
        if self.attempts:
            self.bury(0, 1)

    def queued(self, outcome: str, job_id: str) -> None:
        if outcome == "accepted" and self.model.jobs[job_id].place is None:
            self.model.queued_as(job_id, self.stored_entry(job_id))

    def letters(self) -> list[DeadLetter]:
        return self.send(list_dead(KEYS, shard=0, before=None, count=MAX_DEAD + 1, most_bytes=1000))

    # --- workers -----------------------------------------------------------------------------------------

    @rule(owner=workers)
    def deliver(self, owner: str) -> None:
        reply: Any = self.redis.xreadgroup(GROUP, owner, {KEYS.lane(LANE): ">"}, count=1)
        expected = self.model.deliver(owner)
        assert bool(reply) == (expected is not None)
        if reply:
            ((_, ((entry_id, found),)),) = reply
            assert entry_id.decode() == expected
            self.entries.append((found[b"id"].decode(), entry_id.decode()))

    @rule(owner=workers, room=st.integers(1, 3))
    def take(self, owner: str, room: int) -> None:
        moved = self.model.refill(room)
        taken = self.send(calls.take(KEYS, owner=owner, max_entries=room, max_bytes=10**6))
        for job_id in moved:
            self.model.queued_as(job_id, self.stored_entry(job_id))
        expected = [entry for _ in range(room) if (entry := self.model.deliver(owner)) is not None]
        assert [one.entry_id.decode() for one in taken] == expected
        self.entries += [(one.fields[1].decode(), one.entry_id.decode()) for one in taken]

    @precondition(lambda self: self.entries)
    @rule(pick=picks, owner=workers, times=times)
    def start(self, pick: int, owner: str, times: int) -> None:
        job_id, entry = self.entry(pick)
        self.starts += 1
        nonce = str(self.starts)
        call = calls.start(KEYS, Claim(job_id, entry, owner), lane=LANE, nonce=nonce)
        for _ in range(times):
            attempt = self.model.start(job_id, entry, owner, nonce)
            reply = self.send(call)
            assert (reply.attempt if reply.started else None) == attempt
            if attempt:
                job = self.model.jobs[job_id]
                assert (reply.last_seq, reply.cancelled) == (job.seq, job.cancel)
                assert (reply.died, reply.died_alone) == (job.died, job.died_alone)
                assert [f"{one.cursor} {one.kind}" for one in reply.log] == job.log
                self.attempts.append(Claim(job_id, entry, owner, attempt))

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, ahead=st.sampled_from([1, 1, 1, 0, 2]), times=times)
    def append(self, pick: int, ahead: int, times: int) -> None:
        claim = self.attempt(pick)
        job = self.model.jobs.get(claim.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.append(KEYS, claim, seq=seq, body=b"x", publish=True)
        for _ in range(times):
            reply = self.send(call)
            assert (reply.outcome, reply.last_seq) == self.model.append(claim, seq)

    @precondition(lambda self: self.entries)
    @rule(owner=workers)
    def renew(self, owner: str) -> None:
        held = list(dict.fromkeys(self.entries[-4:]))
        reply = self.send(calls.renew(KEYS, lane=LANE, owner=owner, held=held))
        expected = [(job_id, self.model.renew(owner, job_id, entry)) for job_id, entry in held]
        assert reply.lost == tuple(job_id for job_id, answer in expected if answer == "lost")
        assert reply.cancelled == tuple(job_id for job_id, answer in expected if answer == "cancelled")

    @precondition(lambda self: self.attempts)
    @rule(
        pick=picks,
        state=st.sampled_from([State.COMPLETED, State.FAILED, State.CANCELLED]),
        ahead=st.sampled_from([1, 1, 0, 2]),
        delta=st.booleans(),
        times=times,
    )
    def finish(self, pick: int, state: State, ahead: int, delta: bool, times: int) -> None:
        claim = self.attempt(pick)
        job = self.model.jobs.get(claim.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.finish(
            KEYS, claim, lane=LANE, state=state, result=b"R", seq=seq, delta=b"x" if delta else None,
            ttl_ms=TTL_MS,
        )  # fmt: skip
        for _ in range(times):
            assert self.send(call) == self.model.finish(claim, state, seq, delta)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, times=times)
    def bury(self, pick: int, times: int) -> None:
        claim = self.attempt(pick)
        if claim.entry_id in self.model.destroyed:
            return  # its letter would have no request
        call = calls.dead_letter(
            KEYS, claim, lane=LANE, reason="died", result=b"R", ttl_ms=TTL_MS, max_dead=MAX_DEAD,
        )  # fmt: skip
        for _ in range(times):
            answer = self.model.finish(claim, "failed", 0, delta=False)
            assert self.send(call) == answer
            if answer == "ok":
                self.model.buried(claim.job_id, Place.of(self.letters()[0]).entry)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, alone=st.booleans(), deaths=deaths, times=times)
    def isolate(self, pick: int, alone: bool, deaths: tuple[int, int], times: int) -> None:
        claim = self.attempt(pick)
        call = calls.isolate(KEYS, claim, alone=alone, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            assert self.send(call) == self.model.isolate(claim, alone, *deaths)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, deaths=deaths, times=times)
    def retry(self, pick: int, deaths: tuple[int, int], times: int) -> None:
        claim = self.attempt(pick)
        call = calls.retry(KEYS, claim, lane=LANE, delay_ms=0, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            expected = self.model.retry(claim, *deaths)
            try:
                assert self.send(call) == expected
            except ResponseError as error:
                assert str(error).startswith(expected)  # noqa: PT017 - one of its answers

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, deaths=deaths, times=times)
    def release(self, pick: int, deaths: tuple[int, int], times: int) -> None:
        claim = self.attempt(pick)
        call = calls.release(KEYS, claim, lane=LANE, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            assert self.send(call) == self.model.release(claim, *deaths)

    @precondition(lambda self: self.entries)
    @rule(pick=picks, owner=workers, times=times)
    def give_back(self, pick: int, owner: str, times: int) -> None:
        job_id, entry = self.entry(pick)
        call = calls.release(KEYS, Claim(job_id, entry, owner), lane=LANE)
        for _ in range(times):
            assert self.send(call) == self.model.give_back(job_id, entry, owner)

    @precondition(lambda self: self.model.length)
    @rule(pick=picks)
    def destroy(self, pick: int) -> None:
        left = sorted([*self.model.held.keys() - self.model.destroyed, *self.model.undelivered])
        entry = left[pick % len(left)]
        assert self.redis.xdel(KEYS.lane(LANE), entry) == 1
        self.model.destroy(entry)

    # --- upkeep ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.entries)
    @rule(
        pick=picks, seen=st.sampled_from(["A", "B", RELEASED]), owner=workers, died=st.booleans(), times=times
    )
    def reclaim(self, pick: int, seen: str, owner: str, died: bool, times: int) -> None:
        job_id, entry = self.entry(pick)
        call = calls.reclaim(KEYS, lane=LANE, owner=owner, overdue=[(entry, seen)], min_idle_ms=0, died=died)
        for _ in range(times):
            taken = self.send(call)
            charged = died and seen != RELEASED
            assert bool(taken) == self.model.reclaim(job_id, entry, seen, owner, charged)

    @rule()
    def promote(self) -> None:
        due, refilled = self.model.delayed(), self.model.refill(self.model.window)
        moved = self.send(calls.promote(KEYS, limit=100))
        assert list(moved[: len(refilled)]) == refilled
        assert set(moved[len(refilled) :]) == due
        for job_id in moved:
            self.model.queued_as(job_id, self.stored_entry(job_id))

    @rule(pick=picks, stale=st.sampled_from([0, 0, 0, 1]), times=times)
    def look(self, pick: int, stale: int, times: int) -> None:
        """`stale`: the job has moved on since the worker has read it."""
        job_id = self.name(pick)
        for _ in range(times):
            job = self.model.jobs.get(job_id)
            attempt, seq = (job.attempt, job.seq) if job else (0, 0)
            call = calls.look(
                KEYS, job_id=job_id, attempt=attempt, seq=seq + stale, result=b"R", ttl_ms=TTL_MS
            )
            assert self.send(call) == (not stale and self.model.look(job_id))

    @rule(times=times)
    def expire(self, times: int) -> None:
        for _ in range(times):
            assert set(self.send(calls.expire(KEYS, limit=100, ttl_ms=TTL_MS))) == self.model.expire()

    # --- alike -------------------------------------------------------------------------------------------

    def stored_entry(self, job_id: str) -> str:
        entry: Any = self.redis.hget(KEYS.job(job_id), "entry")
        return str(entry.decode())

    @invariant()
    def jobs_are_alike(self) -> None:
        for job_id in self.names:
            row: Any = self.redis.hgetall(KEYS.job(job_id))
            job = self.model.jobs.get(job_id)
            assert bool(row) == (job is not None)
            if job is None:
                continue
            found = {name.decode(): value.decode() for name, value in row.items()}
            assert found["state"] == job.state
            assert found["entry"] == (job.entry or "")
            assert found["owner"] == job.owner
            assert found.get("requeued_from") == job.requeued_from
            assert [int(found[name]) for name in ("attempt", "seq", "died", "submits")] == [
                job.attempt, job.seq, job.died, job.submits,
            ]  # fmt: skip
            assert int(found.get("died_alone", 0)) == job.died_alone
            assert int(found.get("alone") or 0) == job.alone
            assert ("cancel" in found, "payload" in found) == (job.cancel, job.outside)
            log: Any = self.redis.xrange(KEYS.tokens(job_id))
            assert [f"{cursor.decode()} {entry[b'k'].decode()}" for cursor, entry in log] == job.log
            for key in (KEYS.job(job_id), KEYS.tokens(job_id)):
                assert self.redis.pttl(key) == -2 or (self.redis.pttl(key) > 0) == job.ended

    @invariant()
    def lanes_and_counters_are_alike(self) -> None:
        pending = self.redis.execute_command(
            *calls.pending(KEYS, lane=LANE, start="-", count=1000), parse_detail=True
        )
        held = {entry.entry_id: entry.owner for entry in calls.parse_pending(pending)}
        assert held == self.model.held
        assert self.redis.xlen(KEYS.lane(LANE)) == self.model.length
        live = {job_id: job for job_id, job in self.model.jobs.items() if not job.ended}
        assert int(self.redis.get(KEYS.held_bytes) or 0) == len(PAYLOAD) * len(live)
        assert self.members(KEYS.delayed) == self.model.delayed()
        assert self.members(KEYS.deadlines) == {job_id for job_id, job in live.items() if job.overdue}

    @invariant()
    def the_parked_are_alike(self) -> None:
        order = self.model.order
        places: Any = self.redis.zrange(KEYS.parked(LANE), 0, -1, withscores=True)
        assert [(score, place.decode()) for place, score in places] == [
            (start, f"{arrival:016} {job_id}") for start, arrival, job_id, _ in order.places
        ]
        row: Any = self.redis.hgetall(KEYS.tenants(LANE))
        found = {name.decode(): value.decode() for name, value in row.items()}
        assert int(found.pop("@at", 0)) == order.at
        assert int(found.pop("@n", 0)) == order.arrivals
        assert found == {
            f"={tenant}": f"{finish} {order.parked_of(tenant)}" for tenant, finish in order.finishes.items()
        }

    @invariant()
    def letters_are_alike(self) -> None:
        page = self.letters()
        assert [(Place.of(one).entry, one.job_id) for one in page] == list(self.model.letters.items())[::-1]
        assert all(one.payload == PAYLOAD for one in page)

    def members(self, key: str) -> set[str]:
        found: Any = self.redis.zrange(key, 0, -1)
        return {member.decode() for member in found}

    def teardown(self) -> None:
        self.redis.close()


@pytest.mark.parametrize("window", [128, 1])
def test_server_and_model_stay_alike(server: Server, window: int) -> None:
    """With a window of one entry most jobs are parked."""
    run_state_machine_as_test(
        lambda: Protocol(server, window),
        settings=settings(max_examples=50, stateful_step_count=40, deadline=None),
    )
