"""The client for programs without asyncio: the same methods, from any thread."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from support.servers.servers import Server
from support.workers.hand_worker import serving_thread

from millstream import (
    AsyncClient,
    CancelOutcome,
    Client,
    EndEvent,
    InvalidRequest,
    JobFields,
    NotDead,
    NotReady,
    Request,
    Result,
    State,
    Submitted,
)
from millstream.client.submit.submission import BATCH_JOBS


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def serve(server: Server, jobs: int) -> threading.Thread:
    """Each prompt is answered with its letters."""
    return serving_thread(server.url, lambda request: request.prompt or "", jobs)


def test_all_methods(client: Client, server: Server) -> None:
    submitted = client.submit("abc", id="a")
    assert client.status(submitted.id).state is State.QUEUED
    with pytest.raises(NotReady):
        client.result(submitted.id)
    with pytest.raises(InvalidRequest, match="temperature"):
        client.submit("abc", temperature=-1)
    cancelled = client.submit("no")
    assert client.cancel(cancelled.id) is CancelOutcome.CANCELLED
    more = client.submit_many([{"prompt": "d"}, {"request": Request(prompt="e")}])
    worker = serve(server, 3)
    events = list(client.stream(submitted.id))
    assert [event.text for event in events] == ["a", "b", "c", ""]
    assert isinstance(events[-1], EndEvent)
    ids = [one.id for one in more if isinstance(one, Submitted)]
    assert client.wait(ids[0], timeout_s=20).choices[0].text == "d"
    assert [type(outcome) for outcome in client.wait_many(ids, timeout_s=20).values()] == [Result, Result]
    assert dict(client.as_completed(ids)).keys() == set(ids)
    assert client.result(submitted.id).choices[0].text == "abc"
    assert client.with_queue("other").queue == "other"
    assert client.forget(submitted.id)
    assert client.forget_many(iter([submitted.id])) == {submitted.id: False}
    assert list(client.dead_letters(limit=3)) == []
    for act in (client.dead_letter, client.requeue, client.drop_dead):
        with pytest.raises(NotDead):
            act(submitted.id)
    worker.join()


def test_many_threads_share_a_client(client: Client, server: Server) -> None:
    worker = serve(server, 16)

    def ask(number: int) -> str:
        submitted = client.submit(f"job{number}")
        return "".join(event.text for event in client.stream(submitted.id))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [f"job{number}" for number in range(16)]
    worker.join()


def test_a_stream_may_be_left(client: Client, server: Server) -> None:
    submitted = client.submit("abc")
    serve(server, 1).join()
    for event in client.stream(submitted.id):
        assert event.text == "a"
        break
    assert len(list(client.stream(submitted.id, event.cursor))) == 3


def test_closing_wakes_the_threads_that_wait(server: Server) -> None:
    client = Client(server.url)
    submitted = client.submit("abc")
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(client.wait, submitted.id),
            pool.submit(lambda: list(client.stream(submitted.id))),
        ]
        while len(server_subscriptions(server)) < 1:
            pass
        client.close()
        for one in waiting:
            with pytest.raises(RuntimeError, match="closed"):
                one.result(timeout=20)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.submit("abc")


def server_subscriptions(server: Server) -> list[bytes]:
    with redis.Redis.from_url(server.url) as commands:
        return list(commands.pubsub_channels())


def test_what_makes_the_jobs_runs_in_the_callers_thread(client: Client) -> None:
    threads: list[threading.Thread] = []

    def jobs() -> Iterator[JobFields]:
        for number in range(BATCH_JOBS + 2):
            threads.append(threading.current_thread())
            yield {"prompt": "abc", "id": str(number)}
        client.submit("abc", id="from-within")

    outcomes = client.submit_many(jobs())
    assert [one.id for one in outcomes if isinstance(one, Submitted)] == [f"0-{n}" for n in range(258)]
    ids = (one.id for one in (client.status(f"0-{n}") for n in range(3)))
    assert len(client.wait_many(ids, timeout_s=0)) == 3
    ids = (one.id for one in (client.status(f"0-{n}") for n in range(3)))
    assert len(list(client.as_completed(ids, timeout_s=0))) == 3
    assert set(threads) == {threading.current_thread()}


def test_a_program_ends_that_closes_nothing(server: Server) -> None:
    program = f"""
import millstream
client = millstream.Client({server.url!r})
job = client.submit("abc")
client.cancel(job.id)
client.submit("xyz", id="x")
events = client.stream(job.id)
next(events)
waiting = client.as_completed(["0-x", job.id])
next(waiting)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sync_client_has_the_documented_async_methods() -> None:
    def methods(kind: type) -> dict[str, object]:
        return {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"}

    ours, theirs = methods(Client), methods(AsyncClient)
    own = {"close", "run", "iterate"}  # they are about the loop behind it
    assert ours.keys() - own == theirs.keys() - {"aclose"}
    for name in ours.keys() - own:
        mine, other = inspect.signature(ours[name]), inspect.signature(theirs[name])  # type: ignore[arg-type]
        assert mine.parameters == other.parameters
        assert ours[name].__doc__ == theirs[name].__doc__
        assert ours[name].__doc__
