"""Watches a batch run on the screen: its progress, its queues, and the reason why it waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NoReturn

from millstream.batch.run.run import BatchRun
from millstream.batch.run.tally import Summary
from millstream.cli.batch.server_watch import ServerWatch
from millstream.cli.display.batch_progress import QueueLoad, Shown, show_progress
from millstream.cli.display.terminal import warn
from millstream.cli.embedded.stack import Stack
from millstream.cli.shared.command_run import warn_of_no_worker
from millstream.client.async_client import AsyncClient
from millstream.client.session.queue_status import LaneStatus, QueueStatus
from millstream.client.session.run_while import run_while
from millstream.errors import MillstreamError
from millstream.wire.keys import Lane
from millstream.wire.state.queue_counts import total

LOOK_S = 3.0  # before each look at what the run waits for


async def watched(
    stack: Stack, shown: Shown, client: AsyncClient, lane: Lane, look_s: float = LOOK_S
) -> Summary:
    server = ServerWatch(stack.url, shown.run)
    shown.trouble = server.shown
    running = run_while(show_progress(shown), shown.run.run())
    running = run_while(server.watch(), running)
    running = run_while(_watch_queues(shown, client, lane, look_s), running)
    return await run_while(_warn_of_waiting(stack, server, shown.run, look_s), running)


async def _watch_queues(shown: Shown, client: AsyncClient, lane: Lane, look_s: float) -> NoReturn:
    while True:
        await asyncio.sleep(look_s)
        shown.load = await queue_load(client, shown.run, lane)


async def queue_load(client: AsyncClient, run: BatchRun, lane: Lane) -> QueueLoad:
    """The load of the run's queues now; nothing if it cannot be read."""
    before = _own(run)
    try:
        found = [await client.with_queue(queue).queue_info() for queue in sorted(run.lines.queues)]
    except MillstreamError:
        return QueueLoad()
    workers = [one for info in found for one in info.workers or ()]
    jobs = _jobs([one for info in found for one in info.lanes])
    own = max(before, _own(run))  # rows began and ended meanwhile
    return QueueLoad(
        workers=len(workers),
        rows_running=sum(one.rows_running for one in workers),
        output_tokens_per_s=sum(one.output_tokens_per_s for one in workers),
        behind=_behind(found, lane, own),
        shared=jobs is None or jobs > own,
    )


def _own(run: BatchRun) -> int:
    return run.lines.under_way - run.lines.followers


def _jobs(lanes: Sequence[LaneStatus]) -> int | None:
    """Waiting and running; None if that may not be read."""
    return total([count for one in lanes for count in (one.waiting, one.running)])


def _behind(found: Sequence[QueueStatus], lane: Lane, own: int) -> int:
    """Jobs of others in the lanes that are served no later than this one; 0 if that may not be read."""
    lanes = [one for info in found for one in info.lanes if lane is Lane.BATCH or one.lane == lane]
    waiting = [one.waiting for one in lanes if one.waiting is not None]
    return max(0, sum(waiting) - own) if len(waiting) == len(lanes) else 0


async def _warn_of_waiting(stack: Stack, server: ServerWatch, run: BatchRun, look_s: float) -> NoReturn:
    """Warn once of a full queue, and once of each queue that has jobs and no worker; both may be wanted."""
    seen: set[str] = set()
    full_told = False
    while True:
        await asyncio.sleep(look_s)
        if run.ledger.full and not full_told:
            warn(f"{run.ledger.full}; the run waits until there is room")
            full_told = True
        if not server.quiet:
            continue  # workers, too, may not have reached it for a while
        for queue in sorted(run.lines.queues - seen):
            with contextlib.suppress(MillstreamError):  # the server is watched elsewhere
                served = await stack.has_worker(queue)
                loading = 0 if served else await stack.loading(queue)
                if not server.quiet:
                    break  # it was away during these reads
                seen.add(queue)
                if not served:
                    warn_of_no_worker(queue, loading, "its jobs wait")
