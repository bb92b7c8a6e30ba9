"""One shard of a queue on a real server, with short ways to do what producers and workers do to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio

from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.keys import GROUP, LANES, RELEASED, Lane, QueueKeys, ShardKeys
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import read_job, read_log
from millstream.wire.messages.script_replies import (
    AppendReply,
    CancelOutcome,
    EndOutcome,
    JobRecord,
    LaneEntry,
    LogEntry,
    RenewReply,
    StartReply,
    SubmitOutcome,
    SubmitReply,
)

R = TypeVar("R")
TTL_MS = 60_000
ROOM = {"max_entries": 10**6, "max_bytes": 10**9}
LONG_MS = 10**9  # a time that no test waits for
WINDOW = 128  # undelivered entries of a lane beyond which jobs are parked


class Desk:
    """`lane` is the one that it works on unless told otherwise. Every method sends one call of that name."""

    def __init__(self, client: redis.asyncio.Redis, keys: ShardKeys | None = None) -> None:
        self.redis = client
        self.keys = keys or QueueKeys("docs").shard(0)
        self.lane = Lane.BATCH

    async def open(self) -> Desk:
        for lane in LANES:
            await self.redis.xgroup_create(self.keys.lane(lane), GROUP, "0", mkstream=True)
        return self

    async def run(self, call: ScriptCall[R]) -> R:
        return await calls.run(self.redis, call)

    # --- producers ---------------------------------------------------------------------------------------

    def submitting(self, job_id: str = "0-a", **changed: Any) -> ScriptCall[SubmitReply]:
        given: dict[str, Any] = {
            "lane": self.lane, "payload": b"request", "digest": "d1", "version": 1, "deadline_ms": None,
            "stream": True, "max_entries": 100, "max_bytes": 10_000,
        }  # fmt: skip
        return calls.submit(self.keys, job_id=job_id, **given | changed)

    async def submit(self, job_id: str = "0-a", **changed: Any) -> SubmitReply:
        return await self.run(self.submitting(job_id, **changed))

    async def fill_window(self) -> list[str]:
        """Jobs until what is submitted next is parked."""
        ids = [f"0-window-{number}" for number in range(WINDOW)]
        for job_id in ids:
            assert (await self.submit(job_id, **ROOM)).outcome is SubmitOutcome.ACCEPTED
        return ids

    async def park(self, job_id: str = "0-a", **changed: Any) -> SubmitReply:
        """Submit a job where the lane has its window."""
        reply = await self.submit(job_id, **ROOM | changed)
        assert await self.redis.hmget(self.keys.job(job_id), "place") != [None]
        return reply

    async def take(self, entries: int = 1000, max_bytes: int = 10**6, owner: str = "A") -> list[LaneEntry]:
        call = calls.take(self.keys, owner=owner, max_entries=entries, max_bytes=max_bytes)
        return [calls.lane_entry(one.lane, one.entry_id, one.fields) for one in await self.run(call)]

    async def parked(self) -> list[str]:
        """In the order in which they are served."""
        places = await self.redis.zrange(self.keys.parked(self.lane), 0, -1)
        return [place.decode().partition(" ")[2] for place in places]

    async def cancel(self, job_id: str = "0-a") -> CancelOutcome:
        return await self.run(calls.cancel(self.keys, job_id=job_id, ttl_ms=TTL_MS))

    # --- workers -----------------------------------------------------------------------------------------

    async def deliver(self, owner: str = "A") -> str:
        """Read the next entry of the lane as `owner`; answers its id."""
        reply = await self.redis.xreadgroup(GROUP, owner, {self.keys.lane(self.lane): ">"}, count=1)
        entry_id: bytes = reply[0][1][0][0]
        return entry_id.decode()

    def starting(
        self, entry_id: str, owner: str = "A", job_id: str = "0-a", **changed: Any
    ) -> ScriptCall[StartReply]:
        given: dict[str, Any] = {"lane": self.lane, "nonce": f"nonce-{owner}"}
        return calls.start(self.keys, Claim(job_id, entry_id, owner), **given | changed)

    async def start(self, entry_id: str, owner: str = "A", **changed: Any) -> StartReply:
        return await self.run(self.starting(entry_id, owner, **changed))

    async def begin(self, job_id: str = "0-a", owner: str = "A", **changed: Any) -> Claim:
        """Submit a job, deliver it and start it."""
        await self.submit(job_id, **changed)
        entry_id = await self.deliver(owner)
        reply = await self.start(entry_id, owner, job_id=job_id)
        assert reply.started
        return Claim(job_id, entry_id, owner, reply.attempt)

    async def take_over(self, held: Claim, owner: str = "B") -> Claim:
        """Reclaim a running job for another worker, and start the next attempt."""
        (entry,) = await self.run(self.reclaiming(held.entry_id, held.owner, owner))
        reply = await self.start(entry.entry_id, owner, job_id=held.job_id, nonce=f"again-{owner}")
        assert reply.started
        return Claim(held.job_id, entry.entry_id, owner, reply.attempt)

    def appending(
        self, held: Claim, seq: int, body: bytes = b"delta", publish: bool = True
    ) -> ScriptCall[AppendReply]:
        return calls.append(self.keys, held, seq=seq, body=body, publish=publish)

    async def append(
        self, held: Claim, seq: int, body: bytes = b"delta", publish: bool = True
    ) -> AppendReply:
        return await self.run(self.appending(held, seq, body, publish))

    def finishing(self, held: Claim, seq: int = 1, **changed: Any) -> ScriptCall[EndOutcome]:
        given: dict[str, Any] = {"state": State.COMPLETED, "result": b"result", "delta": None}
        return calls.finish(self.keys, held, lane=self.lane, seq=seq, ttl_ms=TTL_MS, **given | changed)

    async def finish(self, held: Claim, seq: int = 1, **changed: Any) -> EndOutcome:
        return await self.run(self.finishing(held, seq, **changed))

    def burying(self, held: Claim, max_dead: int = 10, **changed: Any) -> ScriptCall[EndOutcome]:
        return calls.dead_letter(
            self.keys, held, lane=self.lane, reason="died", result=b"result", ttl_ms=TTL_MS,
            max_dead=max_dead, **changed,
        )  # fmt: skip

    def isolating(
        self, held: Claim, alone: bool = True, died: int = 0, died_alone: int = 0
    ) -> ScriptCall[EndOutcome]:
        return calls.isolate(self.keys, held, alone=alone, died=died, died_alone=died_alone)

    def retrying(
        self, held: Claim, delay_ms: int = 0, died: int = 0, died_alone: int = 0
    ) -> ScriptCall[EndOutcome]:
        return calls.retry(
            self.keys, held, lane=self.lane, delay_ms=delay_ms, died=died, died_alone=died_alone
        )

    def releasing(self, held: Claim, died: int = 0, died_alone: int = 0) -> ScriptCall[EndOutcome]:
        return calls.release(self.keys, held, lane=self.lane, died=died, died_alone=died_alone)

    def giving_back(self, entry_id: str, owner: str = "A", job_id: str = "0-a") -> ScriptCall[EndOutcome]:
        """Release of an entry that was delivered and never started."""
        return calls.release(self.keys, Claim(job_id, entry_id, owner), lane=self.lane)

    def reclaiming(
        self, entry_id: str, seen: str, owner: str = "B", min_idle_ms: int = 0, died: bool = True
    ) -> ScriptCall[tuple[LaneEntry, ...]]:
        return calls.reclaim(
            self.keys, lane=self.lane, owner=owner, overdue=[(entry_id, seen)], min_idle_ms=min_idle_ms,
            died=died,
        )  # fmt: skip

    def renewing(self, *held: tuple[str, str], owner: str = "A") -> ScriptCall[RenewReply]:
        return calls.renew(self.keys, lane=self.lane, owner=owner, held=held)

    async def done(self, entry: LaneEntry, owner: str = "A") -> EndOutcome:
        """Start and finish what was taken."""
        reply = await self.start(entry.entry_id, owner, job_id=entry.job_id)
        return await self.finish(entry.claim(owner, reply.attempt), seq=reply.last_seq + 1)

    async def promote(self) -> tuple[str, ...]:
        return await self.run(calls.promote(self.keys, limit=100))

    async def expire(self, limit: int = 100) -> tuple[str, ...]:
        return await self.run(calls.expire(self.keys, limit=limit, ttl_ms=TTL_MS))

    # --- what can be seen --------------------------------------------------------------------------------

    async def job(self, job_id: str = "0-a") -> JobRecord:
        record = await read_job(self.redis, self.keys, job_id)
        assert record is not None
        return record

    async def log(self, job_id: str = "0-a") -> list[LogEntry]:
        return await read_log(self.redis, self.keys, job_id)

    async def holders(self) -> dict[str, str]:
        """Entry id -> owner, of the lane's delivered entries."""
        found = await calls.scan_pending(self.redis, self.keys, lane=self.lane, start="-", count=1000)
        return {entry.entry_id: entry.owner for entry in found}

    async def state(self) -> dict[bytes, tuple[bytes, bool]]:
        """Everything the server holds, byte for byte, and whether it will expire."""
        names = sorted([name async for name in self.redis.scan_iter()])
        return {name: (await self.redis.dump(name), await self.redis.pttl(name) >= 0) for name in names}

    async def messages(self, act: Callable[[], Awaitable[Any]]) -> list[tuple[str, bytes]]:
        """(channel, message) of all that was published while `act` ran."""
        heard: list[tuple[str, bytes]] = []
        async with self.redis.pubsub() as pubsub:
            await pubsub.psubscribe("*")
            async for message in pubsub.listen():
                if message["type"] == "psubscribe":  # acknowledged: from here on nothing is missed
                    await act()
                    await self.redis.publish("over", b"")
                elif message["channel"] == b"over":
                    break
                else:
                    heard.append((message["channel"].decode(), message["data"]))
        return heard

    async def audit_idle(self) -> None:
        """Nothing is left of jobs that have all ended: keys have their time, counters and sets are empty."""
        lanes = {self.keys.lane(lane) for lane in LANES}
        assert int(await self.redis.get(self.keys.held_bytes) or 0) == 0
        for name in [name.decode() async for name in self.redis.scan_iter()]:
            if name in lanes:
                assert await self.redis.xlen(name) == 0
                assert (await self.redis.xpending(name, GROUP))["pending"] == 0
            elif name not in self.keys.kept_keys:
                assert await self.redis.pttl(name) > 0, f"{name} would stay for ever"

    async def sweep_stale(self) -> None:
        """Read and start what waits in the lanes, as workers would: entries of ended jobs are dropped."""
        for lane in LANES:
            self.lane = lane
            key = self.keys.lane(lane)
            for _, entries in await self.redis.xreadgroup(GROUP, "sweeper", {key: ">"}, count=1000) or []:
                for entry_id, fields in entries:
                    await self.start(entry_id.decode(), "sweeper", job_id=fields[b"id"].decode())
            for entry_id, owner in (await self.holders()).items():
                if owner == RELEASED:
                    await self.run(self.reclaiming(entry_id, owner, "sweeper"))
