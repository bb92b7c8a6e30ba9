"""Any order of calls by any workers, any of them repeated or late: the server and the model stay alike."""

from __future__ import annotations

from typing import Any, TypeVar

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
from redis.exceptions import NoScriptError
from support.protocol_model import RELEASED, Fence, Model
from support.servers import Server

from millstream.wire import calls
from millstream.wire.calls import Call
from millstream.wire.keys import GROUP, Lane, QueueKeys
from millstream.wire.messages import State

R = TypeVar("R")
KEYS = QueueKeys("docs").shard(0)
LANE = Lane.BATCH
TTL_MS = 600_000
PAYLOAD = b"request"

job_ids = st.sampled_from(["0-a", "0-b"])
workers = st.sampled_from(["A", "B"])
picks = st.integers(0, 7)  # which of the things remembered, the latest first
times = st.sampled_from([1, 1, 2])  # how often a call is sent


class Protocol(RuleBasedStateMachine):
    """`entries` and `attempts` are all that workers ever learned: they act on it however old it is."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.redis = redis.Redis(port=server.port)
        self.redis.flushall()
        for lane in KEYS.lanes:
            self.redis.xgroup_create(lane, GROUP, "0", mkstream=True)
        self.model = Model()
        self.entries: list[tuple[str, str]] = []  # (job id, entry), as delivered
        self.attempts: list[Fence] = []
        self.starts = 0

    def send(self, call: Call[R]) -> R:
        try:
            return call.parse(self.redis.execute_command(*call.by_digest))
        except NoScriptError:
            return call.parse(self.redis.execute_command(*call.by_source))

    def entry(self, pick: int) -> tuple[str, str]:
        return self.entries[-1 - pick % len(self.entries)]

    def attempt(self, pick: int) -> Fence:
        return self.attempts[-1 - pick % len(self.attempts)]

    def fields(self, fence: Fence) -> dict[str, Any]:
        return {
            "job_id": fence.job_id, "attempt": fence.attempt, "owner": fence.owner, "entry_id": fence.entry,
        }  # fmt: skip

    # --- producers ---------------------------------------------------------------------------------------

    @rule(job_id=job_ids, digest=st.sampled_from(["d1", "d1", "d2"]), overdue=st.booleans(), times=times)
    def submit(self, job_id: str, digest: str, overdue: bool, times: int) -> None:
        call = calls.submit(
            KEYS, job_id=job_id, lane=LANE, payload=PAYLOAD, digest=digest, version=1,
            deadline_ms=1 if overdue else None, stream=False, max_entries=1000, max_bytes=10**6,
        )  # fmt: skip
        for _ in range(times):
            outcome = self.model.submit(job_id, digest, overdue)
            assert self.send(call).outcome == outcome
            if outcome == "accepted":
                self.model.queued_as(job_id, self.stored_entry(job_id))

    @rule(job_id=job_ids, times=times)
    def cancel(self, job_id: str, times: int) -> None:
        for _ in range(times):
            answer = self.send(calls.cancel(KEYS, job_id=job_id, ttl_ms=TTL_MS))
            assert answer == self.model.cancel(job_id)

    @precondition(lambda self: any(job.ended for job in self.model.jobs.values()))
    @rule(job_id=job_ids)
    def forget(self, job_id: str) -> None:
        job = self.model.jobs.get(job_id)
        if job and job.ended:
            self.model.forget(job_id)
            self.redis.delete(KEYS.job(job_id), KEYS.tokens(job_id))

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

    @precondition(lambda self: self.entries)
    @rule(pick=picks, owner=workers, times=times)
    def start(self, pick: int, owner: str, times: int) -> None:
        job_id, entry = self.entry(pick)
        self.starts += 1
        nonce = str(self.starts)
        call = calls.start(KEYS, job_id=job_id, lane=LANE, entry_id=entry, owner=owner, nonce=nonce)
        for _ in range(times):
            attempt = self.model.start(job_id, entry, owner, nonce)
            reply = self.send(call)
            assert (reply.attempt if reply.started else None) == attempt
            if attempt:
                job = self.model.jobs[job_id]
                assert (reply.last_seq, reply.died, reply.cancelled) == (job.seq, job.died, job.cancel)
                assert [f"{one.cursor} {one.kind}" for one in reply.log] == job.log
                self.attempts.append(Fence(job_id, entry, owner, attempt))

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, ahead=st.sampled_from([1, 1, 1, 0, 2]), times=times)
    def append(self, pick: int, ahead: int, times: int) -> None:
        fence = self.attempt(pick)
        job = self.model.jobs.get(fence.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.append(KEYS, seq=seq, body=b"x", publish=True, **self.fields(fence))
        for _ in range(times):
            reply = self.send(call)
            assert (reply.outcome, reply.last_seq) == self.model.append(fence, seq)

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
        fence = self.attempt(pick)
        job = self.model.jobs.get(fence.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.finish(
            KEYS, lane=LANE, state=state, result=b"R", seq=seq, delta=b"x" if delta else None, ttl_ms=TTL_MS,
            **self.fields(fence),
        )  # fmt: skip
        for _ in range(times):
            assert self.send(call) == self.model.finish(fence, state, seq, delta)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, times=times)
    def bury(self, pick: int, times: int) -> None:
        fence = self.attempt(pick)
        call = calls.bury(
            KEYS, lane=LANE, reason="died", result=b"R", ttl_ms=TTL_MS, max_dead=5, **self.fields(fence)
        )
        for _ in range(times):
            assert self.send(call) == self.model.finish(fence, "failed", 0, delta=False)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, died=st.booleans(), times=times)
    def retry(self, pick: int, died: bool, times: int) -> None:
        fence = self.attempt(pick)
        call = calls.retry(KEYS, lane=LANE, delay_ms=0, died=died, **self.fields(fence))
        for _ in range(times):
            assert self.send(call) == self.model.retry(fence, died)

    @precondition(lambda self: self.attempts)
    @rule(pick=picks, times=times)
    def release(self, pick: int, times: int) -> None:
        fence = self.attempt(pick)
        for _ in range(times):
            answer = self.send(calls.release(KEYS, lane=LANE, **self.fields(fence)))
            assert answer == self.model.release(fence)

    @precondition(lambda self: self.entries)
    @rule(pick=picks, owner=workers, times=times)
    def give_back(self, pick: int, owner: str, times: int) -> None:
        job_id, entry = self.entry(pick)
        call = calls.release(KEYS, job_id=job_id, lane=LANE, attempt=None, owner=owner, entry_id=entry)
        for _ in range(times):
            assert self.send(call) == self.model.give_back(job_id, entry, owner)

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
        due = self.model.promotable()
        moved = self.send(calls.promote(KEYS, limit=100))
        assert set(moved) == due
        for job_id in moved:
            self.model.queued_as(job_id, self.stored_entry(job_id))

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
        for job_id in ("0-a", "0-b"):
            row: Any = self.redis.hgetall(KEYS.job(job_id))
            job = self.model.jobs.get(job_id)
            assert bool(row) == (job is not None)
            if job is None:
                continue
            found = {name.decode(): value.decode() for name, value in row.items()}
            assert found["state"] == job.state
            assert found["entry"] == (job.entry or "")
            assert found["owner"] == job.owner
            assert [int(found[name]) for name in ("attempt", "seq", "died", "submits")] == [
                job.attempt, job.seq, job.died, job.submits,
            ]  # fmt: skip
            assert ("cancel" in found, "payload" in found) == (job.cancel, job.parked)
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
        assert self.redis.xlen(KEYS.lane(LANE)) == len(held) + len(self.model.undelivered)
        live = {job_id: job for job_id, job in self.model.jobs.items() if not job.ended}
        assert int(self.redis.get(KEYS.held_bytes) or 0) == len(PAYLOAD) * len(live)
        assert self.members(KEYS.delayed) == self.model.promotable()
        assert self.members(KEYS.deadlines) == {job_id for job_id, job in live.items() if job.overdue}

    def members(self, key: str) -> set[str]:
        found: Any = self.redis.zrange(key, 0, -1)
        return {member.decode() for member in found}

    def teardown(self) -> None:
        self.redis.close()


def test_server_and_model_stay_alike(server: Server) -> None:
    run_state_machine_as_test(
        lambda: Protocol(server), settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )
