"""The client for programs without asyncio: AsyncClient's methods, each waiting for its answer.

with Client("redis://localhost:6379") as client:
    job = client.submit("Hello", max_tokens=20)
    for event in client.stream(job.id):
        print(event.text, end="")
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from millstream.client.async_client import DEFAULT_URL, AsyncClient
from millstream.client.jobs.count_jobs import PromptTokens
from millstream.client.loop_thread import LoopThread
from millstream.client.session.job_status import JobStatus
from millstream.client.session.options import ClientOptions
from millstream.client.session.queue_status import QueueStatus
from millstream.client.streaming.events import Event
from millstream.client.submit.requests import JobArguments, JobFields
from millstream.client.submit.submission import BATCH_JOBS, Outcome, Submitted
from millstream.errors import JobError, MillstreamError
from millstream.wire.connection import Target
from millstream.wire.messages.job_messages import Result
from millstream.wire.messages.script_replies import CancelOutcome
from millstream.wire.state.dead_letter import DeadLetter
from millstream.wire.state.durability import Durability
from millstream.wire.state.queue_info import ModelIdentity

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _as(method: Callable[..., Any]) -> Callable[[F], F]:
    """Documented as AsyncClient's method of the same name."""

    def documented(own: F) -> F:
        own.__doc__ = method.__doc__
        return own

    return documented


class Client:
    """One queue of one server, for any number of threads. Close it with `with` or `close`.

    The methods are AsyncClient's; `stream` and `as_completed` are plain iterators. One event loop in a
    background thread serves them all.
    """

    def __init__(
        self,
        url: Target = DEFAULT_URL,
        *,
        queue: str = "default",
        options: ClientOptions | None = None,
    ) -> None:
        self._client = AsyncClient(url, queue=queue, options=options)
        self._thread = LoopThread("millstream-client")
        self._owner = True

    @_as(AsyncClient.with_queue)
    def with_queue(self, queue: str) -> Self:
        other = object.__new__(type(self))
        other._client = self._client.with_queue(queue)
        other._thread = self._thread
        other._owner = False
        return other

    @property
    def queue(self) -> str:
        return self._client.queue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the background thread."""
        if self._owner:
            self._thread.close(self._client.aclose)

    def run(self, function: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Calls a coroutine function with the asyncio client behind this one, and waits for its return."""
        return self._thread.run(function(self._client))

    def iterate(self, function: Callable[[AsyncClient], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Calls an async generator function with the asyncio client behind this one, and yields its items."""
        return self._thread.iterate(function(self._client))

    @_as(AsyncClient.submit)
    def submit(
        self,
        prompt: str | None = None,
        *,
        wait_s: float = 0.0,
        durability: Durability | str | None = None,
        **fields: Unpack[JobArguments],
    ) -> Submitted:
        return self._thread.run(self._client.submit(prompt, wait_s=wait_s, durability=durability, **fields))

    @_as(AsyncClient.submit_many)
    def submit_many(
        self,
        jobs: Iterable[JobFields],
        *,
        wait_s: float = 0.0,
        durability: Durability | str | None = None,
    ) -> list[Outcome]:
        give_up_s = time.monotonic() + wait_s
        outcomes: list[Outcome] = []
        # Iterated here: the caller's iterator may be slow, use this client, or belong to this thread.
        items = iter(jobs)
        while batch := list(islice(items, BATCH_JOBS)):
            remaining_s = max(0.0, give_up_s - time.monotonic())
            outcomes += self._thread.run(
                self._client.submit_many(batch, wait_s=remaining_s, durability=durability)
            )
        return outcomes

    @_as(AsyncClient.count)
    def count(
        self, prompt: str | None = None, *, timeout_s: float | None = None, **fields: Unpack[JobArguments]
    ) -> PromptTokens:
        return self._thread.run(self._client.count(prompt, timeout_s=timeout_s, **fields))

    @_as(AsyncClient.count_many)
    def count_many(
        self, requests: Iterable[JobFields], timeout_s: float | None = None
    ) -> list[PromptTokens | MillstreamError]:
        return self._thread.run(self._client.count_many(list(requests), timeout_s))

    @_as(AsyncClient.stream)
    def stream(self, job_id: str, cursor: str | None = None) -> Iterator[Event]:
        return self._thread.iterate(self._client.stream(job_id, cursor))

    @_as(AsyncClient.result)
    def result(self, job_id: str) -> Result:
        return self._thread.run(self._client.result(job_id))

    @_as(AsyncClient.wait)
    def wait(self, job_id: str, timeout_s: float | None = None) -> Result:
        return self._thread.run(self._client.wait(job_id, timeout_s))

    @_as(AsyncClient.wait_many)
    def wait_many(
        self, job_ids: Iterable[str], timeout_s: float | None = None
    ) -> dict[str, Result | JobError]:
        return self._thread.run(self._client.wait_many(list(job_ids), timeout_s))

    @_as(AsyncClient.as_completed)
    def as_completed(
        self, job_ids: Iterable[str], timeout_s: float | None = None
    ) -> Iterator[tuple[str, Result | JobError]]:
        return self._thread.iterate(self._client.as_completed(list(job_ids), timeout_s))

    @_as(AsyncClient.cancel)
    def cancel(self, job_id: str) -> CancelOutcome:
        return self._thread.run(self._client.cancel(job_id))

    @_as(AsyncClient.cancel_many)
    def cancel_many(self, job_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        return self._thread.run(self._client.cancel_many(list(job_ids)))

    @_as(AsyncClient.status)
    def status(self, job_id: str) -> JobStatus:
        return self._thread.run(self._client.status(job_id))

    @_as(AsyncClient.queue_info)
    def queue_info(self) -> QueueStatus:
        return self._thread.run(self._client.queue_info())

    @_as(AsyncClient.queue_model)
    def queue_model(self) -> ModelIdentity:
        return self._thread.run(self._client.queue_model())

    @_as(AsyncClient.forget)
    def forget(self, job_id: str, *, keep_cached: bool = False) -> bool:
        return self._thread.run(self._client.forget(job_id, keep_cached=keep_cached))

    @_as(AsyncClient.forget_many)
    def forget_many(self, job_ids: Iterable[str], *, keep_cached: bool = False) -> dict[str, bool | JobError]:
        return self._thread.run(self._client.forget_many(list(job_ids), keep_cached=keep_cached))

    @_as(AsyncClient.dead_letters)
    def dead_letters(self, limit: int | None = None) -> Iterator[DeadLetter]:
        return self._thread.iterate(self._client.dead_letters(limit))

    @_as(AsyncClient.dead_letter)
    def dead_letter(self, id: str) -> DeadLetter:
        return self._thread.run(self._client.dead_letter(id))

    @_as(AsyncClient.requeue)
    def requeue(self, id: str, *, wait_s: float = 0.0) -> Submitted:
        return self._thread.run(self._client.requeue(id, wait_s=wait_s))

    @_as(AsyncClient.drop_dead)
    def drop_dead(self, id: str) -> None:
        self._thread.run(self._client.drop_dead(id))
