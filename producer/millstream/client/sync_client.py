"""The client for programs without asyncio: AsyncClient's methods, each waiting for its answer.

with Client("redis://localhost:6379") as client:
    job = client.submit("Hello", max_tokens=20)
    for event in client.stream(job.id):
        print(event.text, end="")
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from millstream.client.async_client import DEFAULT_URL, AsyncClient
from millstream.client.loop_thread import LoopThread
from millstream.client.session.options import ClientOptions
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import BATCH_JOBS, Outcome
from millstream.wire.connection import Target
from millstream.wire.state.durability import Durability

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same method, which waits for its answer."""

    @wraps(method)
    def waiting(self: Client, /, *args: P.args, **more: P.kwargs) -> T:
        return self._thread.run(method(self._client, *args, **more))

    return waiting


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The same method, as a plain iterator."""

    @wraps(method)
    def iterating(self: Client, /, *args: P.args, **more: P.kwargs) -> Iterator[T]:
        return self._thread.iterate(method(self._client, *args, **more))

    return iterating


def _of_all(method: Callable[P, T]) -> Callable[P, T]:
    """The same method, of items that are taken here: the caller's iterator may be slow, use this client, or
    belong to this thread.
    """

    def listed(one: Any) -> Any:
        return list(one) if isinstance(one, Iterable) else one

    @wraps(method)
    def of_all(*args: P.args, **more: P.kwargs) -> T:
        return method(*map(listed, args), **{name: listed(one) for name, one in more.items()})

    return of_all


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

    def with_queue(self, queue: str) -> Self:
        """The same client for another queue: it shares the connections, and ends with this one."""
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

    def __exit__(self, *_: object) -> None:
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

    submit = _waiting(AsyncClient.submit)

    def submit_many(
        self,
        jobs: Iterable[JobFields],
        *,
        wait_s: float = 0.0,
        durability: Durability | str | None = None,
    ) -> list[Outcome]:
        give_up_s = time.monotonic() + wait_s
        outcomes: list[Outcome] = []
        # Iterated here, as in _of_all.
        items = iter(jobs)
        while batch := list(islice(items, BATCH_JOBS)):
            remaining_s = max(0.0, give_up_s - time.monotonic())
            outcomes += self._thread.run(
                self._client.submit_many(batch, wait_s=remaining_s, durability=durability)
            )
        return outcomes

    submit_many.__doc__ = AsyncClient.submit_many.__doc__
    count = _waiting(AsyncClient.count)
    count_many = _waiting(_of_all(AsyncClient.count_many))
    stream = _iterating(AsyncClient.stream)
    result = _waiting(AsyncClient.result)
    wait = _waiting(AsyncClient.wait)
    wait_many = _waiting(_of_all(AsyncClient.wait_many))
    as_completed = _iterating(_of_all(AsyncClient.as_completed))
    cancel = _waiting(AsyncClient.cancel)
    cancel_many = _waiting(_of_all(AsyncClient.cancel_many))
    status = _waiting(AsyncClient.status)
    queue_info = _waiting(AsyncClient.queue_info)
    queue_model = _waiting(AsyncClient.queue_model)
    forget = _waiting(AsyncClient.forget)
    forget_many = _waiting(_of_all(AsyncClient.forget_many))
    dead_letters = _iterating(AsyncClient.dead_letters)
    dead_letter = _waiting(AsyncClient.dead_letter)
    requeue = _waiting(AsyncClient.requeue)
    drop_dead = _waiting(AsyncClient.drop_dead)
