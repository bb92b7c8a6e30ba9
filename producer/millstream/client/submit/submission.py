"""Sends requests to a queue: checked, in batches of one round trip, once per id."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError

from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.options import check_wait
from millstream.client.submit.drain_rate import DrainRate
from millstream.client.submit.requests import EncodedRequest, drafted
from millstream.client.submit.worker_versions import WorkerVersions
from millstream.client.submit.writes import DurableWrites
from millstream.errors import (
    ENDS,
    AccessDenied,
    Conflict,
    InvalidRequest,
    MillstreamError,
    NotDurable,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.wire import calls
from millstream.wire.keys import job_id_of, shard_of
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import SubmitOutcome, SubmitReply
from millstream.wire.server_errors import refusal
from millstream.wire.state.durability import Durability, Reached, Wait
from millstream.wire.state.queue_info import QueueInfo
from millstream.wire.versions import ADDED

T = TypeVar("T")
BATCH_JOBS = 256
BATCH_BYTES = 4 * 1024**2
RETRY_S = 0.5  # before a repeat while the server does not answer
LONGEST_PAUSE_S = 5.0  # of a producer that waits for room: the estimate may be wrong


@dataclass(frozen=True, slots=True)
class Submitted:
    """An accepted job. `created` False: it existed already, under the same id with the same payload.

    `durability` is the durability reached: the one `wanted`, or NONE if that was not reached in time;
    `replicas` have acknowledged the job. It is queued in any case, and runs.
    """

    id: str
    state: State
    created: bool
    durability: Durability = Durability.NONE
    replicas: int = 0
    wanted: Durability = Durability.NONE

    @property
    def durable(self) -> bool:
        """True if the job is as durable as requested."""
        return self.durability is self.wanted

    def raise_for_durability(self) -> None:
        """Raises NotDurable if the job is not as durable as requested."""
        if not self.durable:
            raise NotDurable(self.id, self.wanted, self.replicas)


Outcome = Submitted | MillstreamError
Refusal = InvalidRequest | QueueMismatch  # of an item that is not sent


class Submission:
    """The submitting side of one queue."""

    def __init__(self, jobs: QueueJobs) -> None:
        self._jobs = jobs
        self._session = jobs.session
        self._worker_versions = WorkerVersions(jobs)
        self._drain_rates: defaultdict[int, DrainRate] = defaultdict(DrainRate)  # by shard
        self._writes: dict[Wait, DurableWrites] = {}  # by their durability

    async def one(
        self, fields: Mapping[str, Any], wait_s: float, durability: Durability | str | None = None
    ) -> Submitted:
        """Submit one item; raises the error that `many` would return."""
        [outcome] = await self.many([fields], wait_s, durability)
        return value_of(outcome)

    async def many(
        self,
        items: Iterable[Mapping[str, Any]],
        wait_s: float,
        durability: Durability | str | None = None,
    ) -> list[Outcome]:
        """Returns one outcome for each item, in their order. Raises only if the queue itself cannot be used,
        or the server does not support `durability`.
        """
        check_wait("wait_s", wait_s)
        give_up_s = time.monotonic() + wait_s
        wait = self._session.options.wait(durability)
        server = self._writes.setdefault(wait, DurableWrites(self._session, wait))
        info = await self._session.outlast(self._worker_versions.open, give_up_s)
        await self._session.outlast(server.check, give_up_s)
        now_ms = await self._session.outlast(self._session.now_ms, give_up_s)
        outcomes: list[Outcome] = []
        shards = info.shards if self._worker_versions.keep_results else 1
        ahead_ms = now_ms - time.monotonic() * 1000  # the items may come slowly
        batch: list[EncodedRequest | Refusal] = []
        held_bytes = 0
        for item in items:
            made = await self._drafted(item, ahead_ms, shards)
            held_bytes += _bytes(made)
            if batch and (len(batch) == BATCH_JOBS or held_bytes > BATCH_BYTES):
                outcomes += await self._patiently(server, info, batch, give_up_s)
                batch, held_bytes = [], _bytes(made)
            batch.append(made)
        if batch:
            outcomes += await self._patiently(server, info, batch, give_up_s)
        return outcomes

    async def can_count(self) -> bool:
        """True if a living worker of every shard counts prompts. Creates nothing. Raises Unavailable."""
        return await self._session.outlast(partial(self._worker_versions.serve_everywhere, ADDED["kind"]))

    async def ready(self, item: EncodedRequest, wait_s: float) -> Submitted:
        """Submit one request that was checked and encoded before. Raises what `one` raises."""
        check_wait("wait_s", wait_s)
        give_up_s = time.monotonic() + wait_s
        wait = self._session.options.wait(None)
        server = self._writes.setdefault(wait, DurableWrites(self._session, wait))
        info = await self._session.outlast(self._jobs.open, give_up_s)
        await self._session.outlast(server.check, give_up_s)
        [outcome] = await self._patiently(server, info, [item], give_up_s)
        return value_of(outcome)

    async def _drafted(
        self, item: Mapping[str, Any], ahead_ms: float, shards: int
    ) -> EncodedRequest | Refusal:
        """`ahead_ms`: of the server's clock, before the monotonic one."""
        options = self._session.options
        max_bytes = min(options.max_payload_bytes, options.max_bytes)  # more would not fit an empty queue
        try:
            made = await drafted(item, round(ahead_ms + time.monotonic() * 1000), max_bytes, shards)
            return await self._worker_versions.refusal(made) or made
        except InvalidRequest as error:
            return error
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - one item's must not lose the others' outcomes
            problem = "cannot be written as a message; make it with its model's own checks"
            wrong = InvalidRequest("request", type(error).__name__, problem)
            wrong.__cause__ = error
            return wrong

    async def _patiently(
        self,
        server: DurableWrites,
        info: QueueInfo,
        batch: Sequence[EncodedRequest | Refusal],
        give_up_s: float,
    ) -> list[Outcome]:
        """Send a batch; jobs refused for a full queue or a missing server are sent again until
        `give_up_s`.
        """
        outcomes: dict[int, Outcome] = {
            i: item for i, item in enumerate(batch) if not isinstance(item, EncodedRequest)
        }
        left = {i: item for i, item in enumerate(batch) if isinstance(item, EncodedRequest)}
        while left:
            outcomes |= zip(left, await self._send(server, info, list(left.values())), strict=True)
            again = {i: error for i in left if isinstance(error := outcomes[i], QueueFull | Unavailable)}
            remaining_s = give_up_s - time.monotonic()
            if remaining_s <= 0:
                break
            left = {i: left[i] for i in again}
            if left:
                await asyncio.sleep(min(pause_s(again.values()), remaining_s))
        return [outcomes[i] for i in range(len(batch))]

    async def _send(
        self, server: DurableWrites, info: QueueInfo, drafts: Sequence[EncodedRequest]
    ) -> list[Outcome]:
        ids = [job_id_of(item.own_id, info.shards) for item in drafts]
        requests = [self._call(info, job_id, item) for job_id, item in zip(ids, drafts, strict=True)]
        try:
            replies = await server.run_many(requests)
        except Unavailable as error:
            replies = [(error, Reached())] * len(ids)
        return [
            self._outcome(job_id, reply, server.wait.durability, reached)
            for job_id, (reply, reached) in zip(ids, replies, strict=True)
        ]

    def _call(self, info: QueueInfo, job_id: str, item: EncodedRequest) -> calls.ScriptCall[SubmitReply]:
        keys = info.keys(self._jobs.queue)
        return calls.submit(
            keys.shard(shard_of(job_id)),
            job_id=job_id,
            lane=item.lane,
            payload=item.payload,
            digest=item.digest,
            version=item.version,
            deadline_ms=item.deadline_ms,
            stream=item.stream,
            requeued_from=item.requeued_from,
            tenant=item.tenant,
            cost=item.cost,
            max_entries=self._session.options.max_entries,
            max_bytes=self._session.options.max_bytes,
        )

    def _outcome(
        self, job_id: str, reply: SubmitReply | Exception, wanted: Durability, reached: Reached
    ) -> Outcome:
        backlog = self._drain_rates[shard_of(job_id)]
        match reply:
            case RedisError() if (refused := refusal(reply)) is not None:
                return AccessDenied(f"submit of {job_id}: {refused}")
            case MillstreamError() | RedisError() | OSError():
                # It may have arrived: under the same id it is safe to send again.
                own_id = job_id.partition("-")[2]
                failed = Unavailable(f"submit of {job_id} failed, repeat it with id={own_id!r}: {reply}")
                failed.__cause__ = reply
                return failed
            case Exception():
                raise reply
            case SubmitReply(outcome=SubmitOutcome.CONFLICT):
                return Conflict(job_id)
            case SubmitReply(outcome=SubmitOutcome.FULL):
                backlog.saw(reply.entries, time.monotonic())
                retry_after_s = backlog.retry_after_s(self._session.options.max_entries)
                return QueueFull(
                    self._jobs.queue, reply.entries, reply.held_bytes, retry_after_s, reply.used_up
                )
        created = reply.outcome is SubmitOutcome.ACCEPTED
        backlog.saw(reply.entries, time.monotonic(), added=int(created))
        state = reply.state or State.QUEUED
        return Submitted(job_id, state, created, reached.durability, reached.replicas, wanted)


def pause_s(refusals: Iterable[QueueFull | Unavailable]) -> float:
    """Returns the seconds until the next try: at random from half to all of the shortest delay asked for."""
    soonest_s = min(error.retry_after_s if isinstance(error, QueueFull) else RETRY_S for error in refusals)
    return min(soonest_s, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)


def value_of(outcome: T | MillstreamError) -> T:
    """Raises an outcome that is an error."""
    if isinstance(outcome, MillstreamError):
        raise outcome
    return outcome


def _bytes(item: EncodedRequest | Refusal) -> int:
    return len(item.payload) if isinstance(item, EncodedRequest) else 0
