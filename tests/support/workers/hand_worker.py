"""A worker driven by hand: it takes a job, says what it is told to, and ends it, by the calls of the wire."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import uuid4

import redis
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from millstream.wire import calls
from millstream.wire.calls.upkeep import lane_entry
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, QueueKeys, ShardKeys
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta, FinishReason
from millstream.wire.messages.job_messages import ErrorInfo, Request, Result, State, Usage
from millstream.wire.messages.record import DELTA
from millstream.wire.messages.script_replies import AppendOutcome, EndOutcome, LaneEntry
from millstream.wire.messages.tools import FunctionCall, ToolCall
from millstream.wire.state.queue_info import ModelIdentity, open_queue, record_worker
from millstream.wire.versions import TAKEN

T = TypeVar("T")
TTL_MS = 60_000
_FUNCTION = FunctionCall(name="get", arguments='{"a": "x"}')
UNFIT_CALL: dict[str, Any] = {  # of an answer whose call does not fit its function's parameters
    "finish_reason": "tool_calls",
    "complete": False,
    "tool_calls": (ToolCall(id="call_1", function=_FUNCTION),),
    "schema_error": "the arguments of get do not fit its parameters: $.a: 'x' is too short",
}


class HandJob:
    """One attempt at one job. Texts are remembered, so that the result equals the log."""

    def __init__(
        self, worker: HandWorker, entry: LaneEntry, attempt: int, last_seq: int, said: list[str]
    ) -> None:
        self.worker = worker
        self.entry = entry
        self.id = entry.job_id
        self.request = codec.decode(Request, entry.payload)
        self.attempt = attempt
        self.claim = entry.claim(worker.name, attempt)
        self.seq = last_seq
        self.said = said

    async def say(self, text: str, *, publish: bool = True, **fields: Any) -> AppendOutcome:
        """Append one delta, with these fields. `publish` False: as if its message were lost on the way."""
        body = delta(text, **fields)
        call = calls.append(self.worker.keys, self.claim, seq=self.seq + 1, body=body, publish=publish)
        reply = await calls.run(self.worker.redis, call)
        if reply.outcome in (AppendOutcome.OK, AppendOutcome.DUPLICATE):
            self.seq += 1
            self.said.append(text)
        return reply.outcome

    async def end(
        self,
        state: State = State.COMPLETED,
        *,
        last: str | None = None,
        complete: bool | None = None,
        calls_with: Mapping[str, Any] | None = None,
        error: ErrorInfo | None = None,
        image_tokens: int = 0,
    ) -> EndOutcome:
        """Finish; `last` goes with it as its delta. `complete`: as with a response format. `calls_with`: what
        an answer that calls functions has beside its text.
        """
        whole = "".join(self.said) + (last or "")
        reason: FinishReason | None = None if last is None else "length" if complete is False else "stop"
        ids = tuple(map(ord, whole))
        ended: dict[str, Any] = {"finish_reason": reason, "complete": complete, **(calls_with or {})}
        choice = Choice(text=whole, token_ids=ids, **ended)
        result = Result(
            state=state,
            choices=(choice,),
            usage=Usage(prompt_tokens=1 + image_tokens, output_tokens=len(whole), image_tokens=image_tokens),
            error=error,
            model=self.worker.model.name,
            model_digest=self.worker.model.digest or None,
            attempts=self.attempt,
            metadata=self.request.metadata,
        )
        call = calls.finish(
            self.worker.keys,
            self.claim,
            lane=self.entry.lane,
            state=state,
            result=codec.encode(result),
            seq=self.seq + 1,
            delta=None if last is None else delta(last, **ended),
            ttl_ms=TTL_MS,
        )
        return await calls.run(self.worker.redis, call)

    async def die(self, model_digest: str = "") -> HandJob:
        """This attempt is gone; another worker, of this model, takes the job over."""
        other = HandWorker(self.worker.redis, self.worker.keys, model_digest)
        over = {"overdue": [(self.entry.entry_id, self.worker.name)], "min_idle_ms": 0, "died": True}
        taking = calls.reclaim(self.worker.keys, lane=self.entry.lane, owner=other.name, **over)
        [entry] = await calls.run(self.worker.redis, taking)
        job = await other.start(entry)
        assert job is not None
        return job


class HandWorker:
    """Of one shard of one queue. Takes what producers submitted, in the order of the lanes. Its results name
    `model`.
    """

    def __init__(self, redis: Redis, keys: ShardKeys, model_digest: str = "") -> None:
        self.redis = redis
        self.keys = keys
        self.model_digest = model_digest
        self.name = f"hand-{uuid4().hex[:8]}"
        self.model = ModelIdentity()

    async def take(self) -> HandJob:
        """The next job, waiting for it."""
        while True:
            if job := await self._take():
                return job
            await self.redis.xread(dict.fromkeys(self.keys.lanes, "$"), block=20)

    async def _take(self) -> HandJob | None:
        """None: there is nothing but stale entries, which are dropped."""
        taking = calls.take(self.keys, owner=self.name, max_entries=1, max_bytes=1)
        try:
            while taken := await calls.run(self.redis, taking):
                [one] = taken
                if job := await self.start(lane_entry(one.lane, one.entry_id, one.fields)):
                    return job
        except ResponseError:  # NOGROUP
            await self.create_groups()
        return None

    async def create_groups(self) -> None:
        for key in self.keys.lanes:
            with contextlib.suppress(ResponseError):  # another worker was faster
                await self.redis.xgroup_create(key, GROUP, "0", mkstream=True)

    async def start(self, entry: LaneEntry) -> HandJob | None:
        """None: the entry was stale, and is dropped."""
        call = calls.start(
            self.keys,
            entry.claim(self.name),
            lane=entry.lane,
            nonce=uuid4().hex,
            model_digest=self.model_digest,
        )
        reply = await calls.run(self.redis, call)
        if not reply.started:
            return None
        deltas = [codec.decode(Delta, one.body) for one in reply.log if one.kind == DELTA]
        said = [part.text for one in deltas for part in one.choices]
        return HandJob(self, entry, reply.attempt, reply.last_seq, said)

    async def serve(self, answer: Callable[[Request], Iterable[str]], jobs: int) -> None:
        """Answer so many jobs, one after the other, each in the texts that `answer` gives."""
        for _ in range(jobs):
            job = await self.take()
            for text in answer(job.request):
                await job.say(text)
            await job.end()

    async def answered(self, asking: Awaitable[T], *ended: Any, **how: Any) -> T:
        """What is asked for, whose job it takes and ends."""
        waiting = asyncio.ensure_future(asking)
        await (await self.take()).end(*ended, **how)
        return await waiting


def serving_thread(url: str, answer: Callable[[Request], Iterable[str]], jobs: int) -> threading.Thread:
    """`serve` beside a program without an event loop; already running."""

    async def work() -> None:
        async with hand_worker(url) as worker:
            await worker.serve(answer, jobs)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    return thread


def delta(text: str, **ended: Any) -> bytes:
    """A delta with one token for each character. `ended`: other fields, as those of a last one."""
    part = ChoiceDelta(text=text, token_ids=tuple(map(ord, text)), **ended)
    return codec.encode(Delta(choices=(part,)))


@contextlib.asynccontextmanager
async def hand_worker(url: str, queue: str = "default", shard: int = 0) -> AsyncIterator[HandWorker]:
    """Connected to a server; its commands outlast a restart."""
    redis = Endpoint.of(url).commands("hand-worker", retries=10)
    try:
        info = await open_queue(redis, queue)
        yield HandWorker(redis, info.keys(queue).shard(shard))
    finally:
        await redis.aclose()


async def replace_model(url: str, model: ModelIdentity, queue: str = "default") -> None:
    """In the queue's metadata, as a worker of this model does once it has loaded."""
    async with Redis.from_url(url) as redis:
        await open_queue(redis, queue)
        recording = record_worker(
            QueueKeys(queue), TAKEN, model=model.name, model_digest=model.digest, replace=True
        )
        await calls.run(redis, recording)


def register(port: int, keys: ShardKeys, **fields: str) -> None:
    """The consumer and the heartbeat of a worker `w`, as any language may write them."""
    with redis.Redis(port=port) as client:
        for lane in keys.lanes:
            with contextlib.suppress(ResponseError):  # it has its group
                client.xgroup_create(lane, GROUP, "0", mkstream=True)
        client.xgroup_createconsumer(keys.lanes[-1], GROUP, "w")
        client.hset(keys.worker("w"), mapping={"name": "w", "model": "m", **fields})
