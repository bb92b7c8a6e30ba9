"""Client processes of the benchmark through the queue: each submits what it is given and reads the streams.

python -m ops.bench.queued.client URL QUEUE        work on standard input, a line of JSON each
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

from ops.bench.measures import Run, TokenRecorder

from millstream import AsyncClient, EndEvent, JobFields, NotFound, State, TokenEvent


async def main(url: str, queue: str) -> None:
    async with AsyncClient(url, queue=queue) as client:
        with contextlib.suppress(NotFound):
            await client.status("0-connect")
        while line := await asyncio.to_thread(sys.stdin.readline):
            work = json.loads(line)
            used, begun = time.process_time(), time.monotonic()  # of all processes
            run = await serve(client, work["prompts"], work["lengths"])
            answer = {"run": run.as_json(), "begun": begun, "cpu_s": time.process_time() - used}
            print(json.dumps(answer), flush=True)


async def serve(client: AsyncClient, prompts: list[list[int]], lengths: list[int]) -> Run:
    """Submit all at once, read each stream from the moment its job is accepted. Times count from the first
    submission."""
    recorder = TokenRecorder(len(prompts), time.perf_counter())
    jobs = [
        JobFields(token_ids=prompt, max_tokens=length, temperature=0.0, ignore_eos=True, stream=True)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    outcomes = await client.submit_many(jobs)
    async with asyncio.TaskGroup() as group:
        for row, outcome in enumerate(outcomes):
            if isinstance(outcome, Exception):
                raise outcome
            group.create_task(_read(client, outcome.id, row, recorder))
    return recorder.run(lengths, None)


async def _read(client: AsyncClient, job_id: str, row: int, recorder: TokenRecorder) -> None:
    async for event in client.stream(job_id):
        if isinstance(event, TokenEvent):
            recorder.record(row, time.perf_counter(), sum(len(choice.token_ids) for choice in event.choices))
        elif isinstance(event, EndEvent):
            assert event.state is State.COMPLETED, f"{job_id}: {event.state}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
