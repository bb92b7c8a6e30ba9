"""What is done on the server before a run's first job: are its queues there, and which jobs are to go."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.batch.body import DEFAULT_QUEUE
from millstream.batch.cancelling import Cancelled, cancel_jobs
from millstream.batch.journal import Journal
from millstream.batch.run import RunOptions
from millstream.batch.survey import Survey
from millstream.client.async_client import AsyncClient
from millstream.errors import InvalidRequest
from millstream.wire.keys import QueueKeys

MOST_NAMES = 5  # in one message


async def prepare(client: AsyncClient, journal: Journal, options: RunOptions, survey: Survey) -> Cancelled:
    """Cancel the jobs that no line asks for any more. Raises InvalidRequest where lines name queues that the
    server does not have."""
    if options.queue is None:
        await check_queues(client, survey.models)
    return await cancel_jobs(client, journal, survey.left, wanted=False)


async def check_queues(client: AsyncClient, models: Mapping[str, int]) -> None:
    """Raises InvalidRequest where lines name queues that were never used on this server: their jobs would
    wait for ever. The default queue may be used before it has a worker, and so may one given by --queue."""
    named = {name: count for name, count in models.items() if _names_queue(name)}
    infos = {name: await client.with_queue(name).queue_info() for name in named}
    if unknown := [name for name, info in infos.items() if not info.shards]:
        problem = (
            f"names a queue that this server does not have: {listed({n: named[n] for n in unknown})}; "
            "--queue NAME sends all lines to one queue; or start a worker with --queue of that name first"
        )
        raise InvalidRequest("body.model", unknown[0], problem)


def _names_queue(name: str) -> bool:
    if name in ("", DEFAULT_QUEUE):
        return False
    try:
        QueueKeys(name)
    except InvalidRequest:  # its lines become error rows
        return False
    return True


def listed(models: Mapping[str, int]) -> str:
    ordered = sorted(models.items(), key=lambda item: -item[1])
    shown = [f"{name!r} in {count:,} line{'s' if count > 1 else ''}" for name, count in ordered[:MOST_NAMES]]
    if len(ordered) > MOST_NAMES:
        shown.append(f"{len(ordered) - MOST_NAMES:,} other names")
    return ", ".join(shown)
