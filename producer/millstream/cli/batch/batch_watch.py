"""Watches a batch run on the screen: its progress, jobs of others before it, and the reason why it waits."""

from __future__ import annotations

import asyncio

from millstream.batch.run.run import BatchRun
from millstream.batch.run.tally import Summary
from millstream.cli.display.batch_progress import Shown, show_progress
from millstream.cli.display.terminal import warn
from millstream.cli.embedded.stack import Stack
from millstream.cli.shared.command_run import load_model
from millstream.client.async_client import AsyncClient
from millstream.client.session.run_while import run_while
from millstream.errors import MillstreamError
from millstream.wire.keys import Lane

LOOK_S = 3.0  # before each look at what the run waits for


async def watched(
    stack: Stack, shown: Shown, client: AsyncClient, lane: Lane, look_s: float = LOOK_S
) -> Summary:
    await load_model(stack)
    running = run_while(show_progress(shown), shown.run.run())
    running = run_while(_watch_others(shown, client, lane, look_s), running)
    return await run_while(_warn_of_waiting(stack, shown.run, look_s), running)


async def _watch_others(shown: Shown, client: AsyncClient, lane: Lane, look_s: float) -> None:
    while True:
        await asyncio.sleep(look_s)
        if not shown.run.tally.ended:
            shown.behind = await jobs_before(client, shown.run, lane)


async def jobs_before(client: AsyncClient, batch: BatchRun, lane: Lane) -> int:
    """Jobs of others in the lanes that are served no later than this one; 0 if that cannot be read."""
    waiting = 0
    for queue in sorted(batch.queues):
        try:
            info = await client.with_queue(queue).queue_info()
        except MillstreamError:
            return 0
        for status in info.lanes:
            if status.waiting is None:
                return 0
            if lane is Lane.BATCH or status.lane == lane:
                waiting += status.waiting
    return max(0, waiting - (batch.under_way - batch.followers))


async def _warn_of_waiting(stack: Stack, batch: BatchRun, look_s: float) -> None:
    """Warn once of a full queue, and once of each queue that has jobs and no worker; both may be wanted."""
    seen: set[str] = set()
    full_told = False
    while True:
        await asyncio.sleep(look_s)
        if batch.waits_for_room and not full_told:
            warn(f"{batch.waits_for_room}; the run waits until there is room")
            full_told = True
        for queue in sorted(batch.queues - seen):
            try:
                served = await stack.has_worker(queue)
            except MillstreamError:
                continue  # a short outage of the server is handled by the run
            seen.add(queue)
            if not served:
                warn(f"no worker serves the queue {queue!r} now; its jobs wait until one does")
