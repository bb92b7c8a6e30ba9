"""An open loop through the queue: a real server, a real worker process, and clients that stream."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ops.bench.load.arrivals import Arrival, Served

from millstream import AsyncClient, EndEvent, NotReady, TokenEvent
from millstream.cli.embedded.embedded_server import EmbeddedServer

QUEUE = "load"
START_S = 600.0  # of a worker: a model may be large, or compiled first

Clock = Callable[[], float]
Serve = Callable[[Arrival, Served, Clock], Coroutine[Any, Any, None]]


async def drive(
    serve: Serve,
    arrivals: Sequence[Arrival],
    *,
    limit_s: float,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Served]:
    """A task for each arrival, begun when it is due, independent of those before; at most `limit_s`."""
    served = [Served(arrival.at_s) for arrival in arrivals]
    start = clock()

    def now() -> float:
        return clock() - start

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for arrival, one in zip(arrivals, served, strict=True):
                await sleep(max(0.0, arrival.at_s - now()))
                group.create_task(serve(arrival, one, now))
    return served


def streaming(client: AsyncClient) -> Serve:
    """Submit a request and read its tokens as they come; one that is cut off is cancelled."""

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        job = await client.submit(
            token_ids=arrival.prompt,
            max_tokens=arrival.max_tokens,
            temperature=0.0,
            ignore_eos=True,
            stream=True,
        )
        try:
            async for event in client.stream(job.id):
                if isinstance(event, TokenEvent):
                    served.take(sum(len(choice.token_ids) for choice in event.choices), now())
                elif isinstance(event, EndEvent):
                    event.raise_for_state()
        except asyncio.CancelledError:
            await client.cancel(job.id)
            raise
        assert served.tokens == arrival.max_tokens, f"{job.id}: {served.tokens} tokens"
        served.end_s = now()

    return serve


@contextlib.asynccontextmanager
async def worker(*flags: str) -> AsyncIterator[AsyncClient]:
    """A server with one worker that is ready; a client of theirs."""
    with tempfile.TemporaryDirectory(prefix="millstream-load-") as folder:
        with EmbeddedServer(Path(folder)) as server:
            command = ["-m", "millstream_worker", "--redis-url", server.url, "--queue", QUEUE]
            command += ["--log-level", "warning", "--grace-s", "0", *flags]
            process = await asyncio.create_subprocess_exec(sys.executable, *command, start_new_session=True)
            try:
                async with AsyncClient(server.url, queue=QUEUE) as client:
                    await _until_ready(client, process)
                    yield client
            finally:
                if process.returncode is None:
                    process.terminate()
                await process.wait()


async def _until_ready(client: AsyncClient, process: Process) -> None:
    job = await client.submit(token_ids=[10, 11], max_tokens=1, ignore_eos=True)
    until = time.monotonic() + START_S
    while True:
        try:
            await client.wait(job.id, 1.0)
            return
        except NotReady:
            assert process.returncode is None, "the worker ended: see its log above"
            assert time.monotonic() < until, f"the worker is not ready after {START_S:.0f} s"
