"""The asyncio client: submit jobs, stream their tokens, collect their results.

async with AsyncClient("redis://localhost:6379") as client:
    job = await client.submit("Hello", max_tokens=20)
    async for event in client.stream(job.id):
        print(event.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Self, Unpack

from millstream.client.jobs import cancel_and_forget, count_jobs, follow_stream, wait_jobs
from millstream.client.jobs.count_jobs import PromptTokens
from millstream.client.jobs.dead_letters import DeadLetters
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.job_status import JobStatus
from millstream.client.session.options import ClientOptions
from millstream.client.session.queue_status import QueueStatus, queue_status
from millstream.client.session.session import Session
from millstream.client.streaming.events import Event
from millstream.client.submit.requests import JobArguments, JobFields
from millstream.client.submit.submission import Outcome, Submission, Submitted, value_of
from millstream.errors import JobError, MillstreamError, NotFound
from millstream.wire.connection import Target
from millstream.wire.messages.job_messages import Result
from millstream.wire.messages.script_replies import CancelOutcome
from millstream.wire.state.dead_letter import DeadLetter
from millstream.wire.state.durability import Durability
from millstream.wire.state.queue_info import ModelIdentity

DEFAULT_URL = "redis://localhost:6379/0"


class AsyncClient:
    """One queue of one server. Connects when first used; close it with `async with` or `aclose`.

    All methods may be called from many tasks at once; all streams and waits share one connection. Every
    method raises Unavailable if the server does not answer. `job_id` is everywhere the id that `submit`
    returned, or the own id that was given to it; any other text raises NotFound.
    """

    def __init__(
        self,
        url: Target = DEFAULT_URL,
        *,
        queue: str = "default",
        options: ClientOptions | None = None,
    ) -> None:
        """`url`: redis://, rediss:// or unix://; redis+sentinel://host,host/service or
        redis+cluster://host,host (rediss+… for TLS); or a client of redis.asyncio (Redis, also that of a
        Sentinel's master_for; RedisCluster), whose address and credentials are taken over. Raises
        InvalidRequest."""
        self._session = Session(url, options or ClientOptions())
        self._owner = True
        self._use(queue)

    def _use(self, queue: str) -> None:
        self._jobs = QueueJobs(self._session, queue)
        self._submission = Submission(self._jobs)
        self._dead = DeadLetters(self._jobs, self._submission)

    def with_queue(self, queue: str) -> Self:
        """The same client for another queue: it shares the connections, and ends with this one."""
        other = object.__new__(type(self))
        other._session = self._session
        other._owner = False
        other._use(queue)
        return other

    @property
    def queue(self) -> str:
        return self._jobs.queue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Streams and waits that still run end with an error."""
        if self._owner:
            await self._session.aclose()

    async def submit(
        self,
        prompt: str | None = None,
        *,
        wait_s: float = 0.0,
        durability: Durability | str | None = None,
        **fields: Unpack[JobArguments],
    ) -> Submitted:
        """Queue one job; give exactly one of `prompt`, `messages` and `token_ids`.

        `chat_template_kwargs`: values for the model's chat template, with `messages`: {"enable_thinking":
        False} switches the thinking of Qwen3 off. `response_format`: a pydantic model class, whose object
        `result.parse(Model)` returns, OpenAI's mapping, or a ResponseFormat. `structured_outputs`: vLLM's
        mapping instead, of one of json, regex, choice, grammar and json_object. `tools`, `tool_choice` and
        `parallel_tool_calls`: OpenAI's, with `messages`; the answer's calls are in `choice.tool_calls`.
        `prediction`: what the answer will be for the most part, as OpenAI's mapping or a text: it comes
        faster then, and is the same. `cache`: "no-cache" computes it anew where the queue keeps results of
        equal requests, "no-store" does not keep it either. `id`: your own, so that submitting again is the
        same job. `sampling` or its single fields (max_tokens, temperature, stop, …), which override it.
        `lane`: batch, or interactive, which workers serve first. `deadline_s`: from now; a job that has not
        ended then expires. `stream`: publish tokens at once instead of once a second. `wait_s`: how long to
        wait for room in a full queue, or for a server that does not answer. `durability`: "aof" or "replicas"
        waits until the server's disk, or replicas, have the job; Submitted says which was reached in time.

        Raises InvalidRequest (names the field), Conflict (the id is taken by another request), QueueFull
        (with `retry_after_s` and `reason`), QueueMismatch. After Unavailable it is unknown whether the job
        was queued: submit again with the same `id`.
        """
        return await self._submission.one({"prompt": prompt, **fields}, wait_s, durability)

    async def submit_many(
        self,
        jobs: Iterable[JobFields],
        *,
        wait_s: float = 0.0,
        durability: Durability | str | None = None,
    ) -> list[Outcome]:
        """Queue many jobs, a few hundred in each round trip; returns one outcome for each, in their order.

        Each job is a mapping of the arguments of `submit`. Its outcome is Submitted, or the error that
        `submit` would raise for it: the others continue. Raises QueueMismatch if no worker takes any version
        of this client's messages, InvalidRequest for a `durability` that the server does not support, and
        Unavailable before anything was sent.
        """
        return await self._submission.many(jobs, wait_s, durability)

    async def count(
        self, prompt: str | None = None, *, timeout_s: float | None = None, **fields: Unpack[JobArguments]
    ) -> PromptTokens:
        """The number of tokens of the prompt that these arguments of `submit` make: a worker renders and
        tokenizes it as it would for an answer, with the same refusals, and computes nothing. It takes its
        turn in its lane. Without a living worker that counts it is `estimated` from the prompt's bytes.

        Raises JobFailed (`bad_request` or `context_length_exceeded`), NotReady after `timeout_s`, and what
        `submit` raises.
        """
        asked = [{"prompt": prompt, **fields}]
        [outcome] = await count_jobs.count_prompts(self._jobs, self._submission, asked, timeout_s)
        return value_of(outcome)

    async def count_many(
        self, requests: Iterable[JobFields], timeout_s: float | None = None
    ) -> list[PromptTokens | MillstreamError]:
        """Count many prompts at once, a few hundred in each round trip; returns what `count` returns or
        raises for each, in their order.
        """
        return await count_jobs.count_prompts(self._jobs, self._submission, requests, timeout_s)

    def stream(self, job_id: str, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """The job's events: TokenEvent as tokens come, RewindEvent if the server lost some, then EndEvent.

        Nothing is lost and nothing comes twice, over reconnects, restarts of the server and new attempts.
        `cursor`: that of the last event you have, from this or another process; without it, from the start. A
        failed job ends the stream like any other: see EndEvent's `state`, `error` and `raise_for_state`.

        Raises NotFound, CursorExpired (the log is gone: read the result), InvalidRequest.
        """
        return follow_stream.follow(self._jobs, job_id, cursor)

    async def result(self, job_id: str) -> Result:
        """The job's result, without waiting.

        Raises NotReady, NotFound, and JobFailed, JobCancelled or JobExpired, whose `result` has the partial
        text.
        """
        record = await self._jobs.record(job_id)
        if not record.state.terminal:
            raise await self._jobs.not_ready(record.job_id, record.state)
        return value_of((await self._jobs.ended(record)).read())

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Result:
        """Wait for the job's end. Raises what `result` raises; NotReady after `timeout_s`."""
        [outcome] = (await self.wait_many([job_id], timeout_s)).values()
        return value_of(outcome)

    async def wait_many(
        self, job_ids: Iterable[str], timeout_s: float | None = None
    ) -> dict[str, Result | JobError]:
        """Wait for all these jobs; returns their outcomes, errors as values; see `as_completed`."""
        return {job_id: outcome async for job_id, outcome in self.as_completed(job_ids, timeout_s)}

    def as_completed(
        self, job_ids: Iterable[str], timeout_s: float | None = None
    ) -> AsyncGenerator[tuple[str, Result | JobError], None]:
        """The given ids with the outcomes of their jobs, in the order in which they end; made for many
        thousands at once.

        An outcome is a Result, or as a value the error that `result` would raise. After `timeout_s` those
        still left come as NotReady.
        """
        return wait_jobs.as_completed(self._jobs, job_ids, timeout_s)

    async def cancel(self, job_id: str) -> CancelOutcome:
        """Cancel the job. CANCELLED: it waited, and has ended. REQUESTED: it runs; its worker ends it soon.
        TERMINAL: it had ended before, and stays as it is. Raises NotFound.
        """
        [outcome] = (await self.cancel_many([job_id])).values()
        if outcome is CancelOutcome.NOT_FOUND:
            raise NotFound(job_id)
        return outcome

    async def cancel_many(self, job_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """Cancel many jobs, in few round trips; returns the outcome of each id as it was given, full or own.
        NOT_FOUND is an outcome, too.
        """
        return await cancel_and_forget.cancel_many(self._jobs, job_ids)

    async def status(self, job_id: str) -> JobStatus:
        """Where the job stands: state, times, attempts. Raises NotFound."""
        return JobStatus.of(await self._jobs.record(job_id))

    async def queue_info(self) -> QueueStatus:
        """The queue's waiting and running jobs, and its workers. Fields that the client's role may not read
        are None: see QueueStatus. Creates nothing.
        """
        return await queue_status(self._jobs)

    async def queue_model(self) -> ModelIdentity:
        """The queue's model: name and digest, both empty where no worker has recorded them. One short read;
        creates nothing.
        """
        return await self._jobs.model()

    async def forget(self, job_id: str, *, keep_cached: bool = False) -> bool:
        """Delete an ended job's result and stream from the server; `keep_cached`: not what is kept of it for
        equal requests. False: there was nothing (any more). Raises NotReady: cancel it first.
        """
        return value_of((await self.forget_many([job_id], keep_cached=keep_cached))[job_id])

    async def forget_many(
        self, job_ids: Iterable[str], *, keep_cached: bool = False
    ) -> dict[str, bool | JobError]:
        """Forget many jobs, in few round trips. A job that has not ended stays: NotReady as a value."""
        return await cancel_and_forget.forget_many(self._jobs, list(job_ids), keep_cached=keep_cached)

    def dead_letters(self, limit: int | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Jobs that were given up because they kept killing their engine, or were tried too often, and
        entries that were no jobs: the newest first, over all shards, without their requests.
        """
        return self._dead.newest(limit)

    async def dead_letter(self, id: str) -> DeadLetter:
        """One dead letter, with its request. `id`: the letter's, or the job's. Raises NotDead."""
        return await self._dead.find(id)

    async def requeue(self, id: str, *, wait_s: float = 0.0) -> Submitted:
        """Submit a dead letter's request once more: same lane, tenant and metadata, no deadline, a new id
        that follows from the letter, so that repeating a requeue is safe. The letter is deleted once the job
        is accepted, as durably as the client's options require.

        Raises NotDead (in a repeat after Unavailable: it had been requeued), InvalidRequest (it is no job),
        and what `submit` raises.
        """
        return await self._dead.requeue(id, wait_s)

    async def drop_dead(self, id: str) -> None:
        """Delete a dead letter. Raises NotDead."""
        await self._dead.drop(id)
