"""Any order of calls by any workers, any of them repeated or late: the server and the model stay alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from inspect import signature
from typing import Any, TypeVar

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError
from support.servers.servers import Server
from support.wire.protocol_model import MAX_DEAD, RELEASED, Model
from support.wire.windows import send

from millstream.client.jobs.dead_letters import again
from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.keys import GROUP, Lane, QueueKeys, job_id_of
from millstream.wire.messages.job_messages import State
from millstream.wire.state.dead_letter import DeadLetter, Place, list_dead
from millstream.wire.state.queue_info import serve_model

R = TypeVar("R")
KEYS = QueueKeys("docs").shard(0)
LANE = Lane.BATCH
TTL_MS = 600_000
PAYLOAD = b"request"

# What may happen; by chance alone, few calls would find a job that runs.
STEPS = [
    *["begin"] * 6, *["append", "finish", "bury", "retry", "release", "reclaim"] * 2,
    "submit", "cancel", "forget", "time_to_live_ends", "requeue", "deliver", "take", "start", "renew",
    "isolate", "give_back", "destroy", "promote", "look", "expire", "replace_model",
]  # fmt: skip
# And its arguments by their names; those that are not here come out of what was learnt before.
ARGUMENTS: dict[str, Sequence[Any]] = {
    "job_id": ("0-a", "0-b", "0-c"),
    "digest": ("d1", "d1", "d2"),
    "overdue": (True, False, False),
    "tenant": ("", "b"),
    "cost": (1, 5),
    "owner": ("A", "B"),
    "room": (1, 2, 3),
    "times": (1, 1, 2),  # how often the call is sent
    "tokens": (0, 1, 2),
    "ahead": (1, 1, 1, 0, 2),
    "delta": (True, False),
    "state": (State.COMPLETED, State.FAILED, State.CANCELLED),
    "alone": (True, False),
    "deaths": ((0, 0), (0, 0), (1, 0), (2, 1), (3, 3)),  # in all and alone, as a worker tells them
    "seen": ("A", "B", RELEASED),
    "died": (True, False),
    "stale": (0, 0, 0, 1),
    "whole": (True, False),
    "model_digest": ("m1", "m1", "m1", "m2", ""),
}


class Protocol:
    """`reads` and `attempts` are all that workers ever learned: they act on it however old it is."""

    def __init__(self, server: Server, window: int) -> None:
        self.window = window
        self.redis = redis.Redis(port=server.port)
        self.redis.flushall()
        for lane in KEYS.lanes:
            self.redis.xgroup_create(lane, GROUP, "0", mkstream=True)
        self.model = Model(window)
        self.reads: list[tuple[str, str]] = []  # (job id, entry), as delivered
        self.attempts: list[Claim] = []
        self.names = ["0-a", "0-b", "0-c"]  # of all jobs there ever were
        self.starts = 0

    def step(self, name: str, chance: random.Random) -> None:
        act, arguments = getattr(self, name), {}
        for parameter in signature(act).parameters:
            if not (choices := ARGUMENTS.get(parameter) or self.learnt(parameter)):
                return
            arguments[parameter] = chance.choice(choices)
        act(**arguments)
        self.jobs_are_alike()
        self.lanes_and_counters_are_alike()
        self.the_parked_are_alike()
        self.letters_are_alike()

    def learnt(self, parameter: str) -> Sequence[Any]:
        """The latest ones more often."""
        match parameter:
            case "read":
                return self.reads[-8:] + self.reads[-1:] * 8
            case "claim":
                return self.attempts[-8:] + self.attempts[-1:] * 8
            case "letter":
                return self.letters()
            case "any_id":
                return self.names
            case _:  # entry
                return sorted([*self.model.held.keys() - self.model.destroyed, *self.model.undelivered])

    def send(self, call: ScriptCall[R]) -> R:
        return send(self.redis, call, self.window)

    # --- producers ---------------------------------------------------------------------------------------

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

    def cancel(self, any_id: str, times: int) -> None:
        for _ in range(times):
            answer = self.send(calls.cancel(KEYS, job_id=any_id, ttl_ms=TTL_MS))
            assert answer == self.model.cancel(any_id)

    def forget(self, any_id: str, times: int) -> None:
        for _ in range(times):
            answer = self.send(calls.forget(KEYS, job_id=any_id))
            told = answer.state or ("forgotten" if answer.deleted else "not_found")
            assert told == self.model.forget(any_id)

    def time_to_live_ends(self, any_id: str) -> None:
        job = self.model.jobs.get(any_id)
        if job and job.ended:
            self.model.forget(any_id)
            self.redis.delete(KEYS.job(any_id), KEYS.tokens(any_id))

    def requeue(self, letter: DeadLetter, times: int, whole: bool) -> None:
        """The job is submitted; `whole`: then the letter goes, else whoever does it is cut off before."""
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

    def begin(self, job_id: str, owner: str, tenant: str, tokens: int, model_digest: str) -> None:
        """A job of that name runs, if it can."""
        self.time_to_live_ends(job_id)
        self.submit(job_id, "d1", False, tenant, 1, 1)
        self.take(owner, 1)
        if self.reads:
            self.start(self.reads[-1], owner, model_digest, 1)
        for _ in range(tokens if self.attempts else 0):
            self.append(self.attempts[-1], 1, 1)

    def queued(self, outcome: str, job_id: str) -> None:
        if outcome == "accepted" and self.model.jobs[job_id].place is None:
            self.model.queued_as(job_id, self.stored_entry(job_id))

    def letters(self) -> list[DeadLetter]:
        return self.send(list_dead(KEYS, shard=0, before=None, count=MAX_DEAD + 1, most_bytes=1000))

    # --- workers -----------------------------------------------------------------------------------------

    def deliver(self, owner: str) -> None:
        reply: Any = self.redis.xreadgroup(GROUP, owner, {KEYS.lane(LANE): ">"}, count=1)
        expected = self.model.deliver(owner)
        assert bool(reply) == (expected is not None)
        if reply:
            ((_, ((entry_id, found),)),) = reply
            assert entry_id.decode() == expected
            self.reads.append((found[b"id"].decode(), entry_id.decode()))

    def take(self, owner: str, room: int) -> None:
        moved = self.model.refill(room)
        taken = self.send(calls.take(KEYS, owner=owner, max_entries=room, max_bytes=10**6))
        for job_id in moved:
            self.model.queued_as(job_id, self.stored_entry(job_id))
        expected = [entry for _ in range(room) if (entry := self.model.deliver(owner)) is not None]
        assert [one.entry_id.decode() for one in taken] == expected
        self.reads += [(one.fields[1].decode(), one.entry_id.decode()) for one in taken]

    def start(self, read: tuple[str, str], owner: str, model_digest: str, times: int) -> None:
        job_id, entry = read
        self.starts += 1
        nonce = str(self.starts)
        claim = Claim(job_id, entry, owner)
        call = calls.start(KEYS, claim, lane=LANE, nonce=nonce, model_digest=model_digest)
        for _ in range(times):
            attempt = self.model.start(job_id, entry, owner, nonce, model_digest)
            reply = self.send(call)
            assert (reply.attempt if reply.started else reply.served or None) == attempt
            if isinstance(attempt, int):
                job = self.model.jobs[job_id]
                assert (reply.last_seq, reply.cancelled) == (job.seq, job.cancel)
                assert (reply.died, reply.died_alone) == (job.died, job.died_alone)
                assert [f"{one.cursor} {one.kind}" for one in reply.log] == job.log
                self.attempts.append(Claim(job_id, entry, owner, attempt))

    def replace_model(self, model_digest: str) -> None:
        if model_digest:
            self.send(serve_model(KEYS, model_digest))
            self.model.served = model_digest

    def append(self, claim: Claim, ahead: int, times: int) -> None:
        job = self.model.jobs.get(claim.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.append(KEYS, claim, seq=seq, body=b"x", publish=True)
        for _ in range(times):
            reply = self.send(call)
            assert (reply.outcome, reply.last_seq) == self.model.append(claim, seq)

    def renew(self, owner: str) -> None:
        held = list(dict.fromkeys(self.reads[-4:]))
        reply = self.send(calls.renew(KEYS, lane=LANE, owner=owner, held=held))
        expected = [(job_id, self.model.renew(owner, job_id, entry)) for job_id, entry in held]
        assert reply.lost == tuple(job_id for job_id, answer in expected if answer == "lost")
        assert reply.cancelled == tuple(job_id for job_id, answer in expected if answer == "cancelled")

    def finish(self, claim: Claim, state: State, ahead: int, delta: bool, times: int) -> None:
        job = self.model.jobs.get(claim.job_id)
        seq = max((job.seq if job else 0) + ahead, 1)
        call = calls.finish(
            KEYS, claim, lane=LANE, state=state, result=b"R", seq=seq, delta=b"x" if delta else None,
            ttl_ms=TTL_MS,
        )  # fmt: skip
        for _ in range(times):
            assert self.send(call) == self.model.finish(claim, state, seq, delta)

    def bury(self, claim: Claim, times: int) -> None:
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

    def isolate(self, claim: Claim, alone: bool, deaths: tuple[int, int], times: int) -> None:
        call = calls.isolate(KEYS, claim, alone=alone, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            assert self.send(call) == self.model.isolate(claim, alone, *deaths)

    def retry(self, claim: Claim, deaths: tuple[int, int], times: int) -> None:
        call = calls.retry(KEYS, claim, lane=LANE, delay_ms=0, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            expected = self.model.retry(claim, *deaths)
            try:
                assert self.send(call) == expected
            except ResponseError as error:
                assert str(error).startswith(expected)  # noqa: PT017 - one of its answers

    def release(self, claim: Claim, deaths: tuple[int, int], times: int) -> None:
        call = calls.release(KEYS, claim, lane=LANE, died=deaths[0], died_alone=deaths[1])
        for _ in range(times):
            assert self.send(call) == self.model.release(claim, *deaths)

    def give_back(self, read: tuple[str, str], owner: str, times: int) -> None:
        job_id, entry = read
        call = calls.release(KEYS, Claim(job_id, entry, owner), lane=LANE)
        for _ in range(times):
            assert self.send(call) == self.model.give_back(job_id, entry, owner)

    def destroy(self, entry: str) -> None:
        assert self.redis.xdel(KEYS.lane(LANE), entry) == 1
        self.model.destroy(entry)

    # --- upkeep ------------------------------------------------------------------------------------------

    def reclaim(self, read: tuple[str, str], seen: str, owner: str, died: bool, times: int) -> None:
        job_id, entry = read
        call = calls.reclaim(KEYS, lane=LANE, owner=owner, overdue=[(entry, seen)], min_idle_ms=0, died=died)
        for _ in range(times):
            taken = self.send(call)
            charged = died and seen != RELEASED
            assert bool(taken) == self.model.reclaim(job_id, entry, seen, owner, charged)

    def promote(self) -> None:
        due, refilled = self.model.delayed(), self.model.refill(self.model.window)
        moved = self.send(calls.promote(KEYS, limit=100))
        assert list(moved[: len(refilled)]) == refilled
        assert set(moved[len(refilled) :]) == due
        for job_id in moved:
            self.model.queued_as(job_id, self.stored_entry(job_id))

    def look(self, any_id: str, stale: int, times: int) -> None:
        """`stale`: the job has moved on since the worker has read it."""
        for _ in range(times):
            job = self.model.jobs.get(any_id)
            attempt, seq = (job.attempt, job.seq) if job else (0, 0)
            call = calls.look(
                KEYS, job_id=any_id, attempt=attempt, seq=seq + stale, result=b"R", ttl_ms=TTL_MS
            )
            assert self.send(call) == (not stale and self.model.look(any_id))

    def expire(self, times: int) -> None:
        for _ in range(times):
            assert set(self.send(calls.expire(KEYS, limit=100, ttl_ms=TTL_MS))) == self.model.expire()

    # --- alike -------------------------------------------------------------------------------------------

    def stored_entry(self, job_id: str) -> str:
        entry: Any = self.redis.hget(KEYS.job(job_id), "entry")
        return str(entry.decode())

    def read(self, *commands: tuple[Any, ...], **options: Any) -> list[Any]:
        """In one round trip."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command, **options)
            return pipeline.execute()

    def jobs_are_alike(self) -> None:
        pairs = [(KEYS.job(job_id), KEYS.tokens(job_id)) for job_id in self.names]
        rows = self.read(*(("HGETALL", job) for job, _ in pairs))
        logs = self.read(*(("XRANGE", tokens, "-", "+") for _, tokens in pairs))
        lives = self.read(*(("PTTL", key) for pair in pairs for key in pair))
        for place, job_id in enumerate(self.names):
            job = self.model.jobs.get(job_id)
            assert bool(rows[place]) == (job is not None)
            if job is None:
                assert not logs[place]
                continue
            found = {name.decode(): value.decode() for name, value in rows[place].items()}
            assert found["state"] == job.state
            assert found["entry"] == (job.entry or "")
            assert found["owner"] == job.owner
            assert found.get("requeued_from") == job.requeued_from
            assert [int(found[name]) for name in ("attempt", "seq", "died", "submits")] == [
                job.attempt, job.seq, job.died, job.submits,
            ]  # fmt: skip
            assert int(found.get("died_alone", 0)) == job.died_alone
            assert found.get("model_digest", "") == job.model_digest
            assert int(found.get("alone") or 0) == job.alone
            assert ("cancel" in found, "payload" in found) == (job.cancel, job.outside)
            assert [f"{at.decode()} {entry[b'k'].decode()}" for at, entry in logs[place]] == job.log
            for left_ms in lives[2 * place : 2 * place + 2]:
                assert left_ms == -2 or (left_ms > 0) == job.ended

    def lanes_and_counters_are_alike(self) -> None:
        pending = self.redis.xpending_range(KEYS.lane(LANE), GROUP, "-", "+", 1000)
        held = {entry["message_id"].decode(): entry["consumer"].decode() for entry in pending}
        assert held == self.model.held
        length, held_bytes, *sets = self.read(
            ("XLEN", KEYS.lane(LANE)),
            ("GET", KEYS.held_bytes),
            *(("ZRANGE", key, 0, -1) for key in (KEYS.delayed, KEYS.deadlines)),
        )
        assert length == self.model.length
        live = {job_id: job for job_id, job in self.model.jobs.items() if not job.ended}
        assert int(held_bytes or 0) == len(PAYLOAD) * len(live)
        overdue = {job_id for job_id, job in live.items() if job.overdue}
        assert [{one.decode() for one in found} for found in sets] == [self.model.delayed(), overdue]

    def the_parked_are_alike(self) -> None:
        order = self.model.order
        places, row = self.read(("ZRANGE", KEYS.parked(LANE), 0, -1), ("HGETALL", KEYS.tenants(LANE)))
        assert [place.decode() for place in places] == [
            f"{arrival:016} {job_id}" for _, arrival, job_id, _ in order.places
        ]
        found = {name.decode(): value.decode() for name, value in row.items()}
        assert int(found.pop("@at", 0)) == order.at
        assert int(found.pop("@n", 0)) == order.arrivals
        assert found == {
            f"={tenant}": f"{finish} {order.parked_of(tenant)}" for tenant, finish in order.finishes.items()
        }

    def letters_are_alike(self) -> None:
        page = self.letters()
        assert [(Place.of(one).entry, one.job_id) for one in page] == list(self.model.letters.items())[::-1]
        assert all(one.payload == PAYLOAD for one in page)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    window=st.sampled_from([128, 1]),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10**6)), min_size=20, max_size=80),
)
def test_server_and_model_stay_alike(server: Server, window: int, steps: list[tuple[str, int]]) -> None:
    """With a window of one entry most jobs are parked."""
    protocol = Protocol(server, window)
    for name, seed in steps:
        protocol.step(name, random.Random(seed))
    protocol.redis.close()
