"""How a queue's rate grows with its workers. Their engines are stand-ins that sample a token for each row in
a given rhythm, so that workers, not models, share this machine's cores.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AsyncExitStack

from ops.bench.growth.part import Outcome, Setting, curve
from ops.bench.plots import Panel, Row
from ops.bench.stand_ins.counting import word_tokenizer

from millstream import AsyncClient, JobFields, Result
from millstream.cli.embedded.embedded_server import EmbeddedServer
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys
from millstream.wire.state.heartbeat import read_workers

QUEUE = "growth"
WORKERS = (1, 2, 3, 4)
QUICK_WORKERS = (2,)
ROWS, STEPS_S, TOKENS = 32, 50.0, 16  # of each worker; tokens of a job
START_S = 60.0


def workers(setting: Setting) -> Outcome:
    sizes = QUICK_WORKERS if setting.options.quick else WORKERS
    found = [asyncio.run(_measure(setting, number)) for number in setting.within(sizes)]
    curves = [
        curve(found, "workers", "jobs/s", "measured"),
        curve(found, "workers", "limit jobs/s", "as many as the engines draw", "limit"),
    ]
    panel = Panel("Jobs end to end", "workers", "jobs/s", curves)
    return Outcome(f"Workers on one queue, {ROWS * STEPS_S:,.0f} tokens/s each", found, [panel])


async def _measure(setting: Setting, number: int) -> Row:
    most = number * ROWS * STEPS_S / TOKENS
    jobs = round(most * (1 if setting.options.quick else 10))
    with EmbeddedServer(setting.scratch / f"workers-{number}") as server:
        async with AsyncExitStack() as stack:
            crew = [await _start(setting, server.url) for _ in range(number)]
            stack.push_async_callback(_end, crew)
            client = await stack.enter_async_context(AsyncClient(server.url, queue=QUEUE))
            await _until_all_serve(server.url, crew)
            await _run(client, ROWS * number)
            start = time.perf_counter()
            await _run(client, jobs)
            seconds = time.perf_counter() - start
    return {"workers": number, "jobs/s": jobs / seconds, "limit jobs/s": most}


async def _run(client: AsyncClient, jobs: int) -> None:
    work: list[JobFields] = [{"prompt": "w1", "max_tokens": TOKENS, "ignore_eos": True}] * jobs
    outcomes = await client.submit_many(work)
    ids = [outcome.id for outcome in outcomes if not isinstance(outcome, Exception)]
    assert len(ids) == jobs, f"only {len(ids)} of {jobs} jobs were taken"
    async for job_id, outcome in client.as_completed(ids):
        assert isinstance(outcome, Result), f"{job_id}: {outcome}"


async def _start(setting: Setting, url: str) -> Process:
    engine = f"{sys.executable} -m ops.bench.stand_ins.paced --steps-s {STEPS_S}"
    command = ["-m", "millstream_worker", "--redis-url", url, "--queue", QUEUE, "--engine-command", engine]
    command += ["--model", str(word_tokenizer(setting.scratch)), "--max-rows", str(ROWS)]
    command += ["--log-level", "warning", "--grace-s", "0"]
    return await asyncio.create_subprocess_exec(sys.executable, *command, start_new_session=True)


async def _end(crew: Sequence[Process]) -> None:
    for process in crew:
        if process.returncode is None:
            process.terminate()
    for process in crew:
        await process.wait()


async def _until_all_serve(url: str, crew: Sequence[Process]) -> None:
    redis = Endpoint.of(url).commands("growth")
    until = time.monotonic() + START_S
    shard = QueueKeys(QUEUE).shard(0)
    while len(await read_workers(redis, shard)) < len(crew):
        assert all(process.returncode is None for process in crew), "a worker ended"
        assert time.monotonic() < until, f"not all workers serve after {START_S:.0f} s"
        await asyncio.sleep(0.1)  # a heartbeat sets no event
    await redis.aclose()
