"""Looks at the queues that lines name: whether the server has them, and what their models can hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from millstream.client.async_client import AsyncClient
from millstream.errors import InvalidRequest, MillstreamError
from millstream.openai.request_body import DEFAULT_QUEUE
from millstream.wire.keys import QueueKeys

MOST_NAMES = 5  # in one message


async def read_contexts(client: AsyncClient, queues: Iterable[str]) -> dict[str, int]:
    """Most tokens of a request with its answer, by queue, where living workers tell."""
    found: dict[str, int] = {}
    with contextlib.suppress(MillstreamError):  # not readable, or silent: the run reports that itself
        for queue in queues:
            workers = (await client.with_queue(queue).queue_info()).workers or ()
            if told := [worker.context_length for worker in workers if worker.context_length]:
                found[queue] = max(told)
    return found


async def check_queues(client: AsyncClient, models: Mapping[str, int]) -> None:
    """Raises InvalidRequest if lines name queues that were never used on this server: their jobs would wait
    for ever. The default queue, and one given by --queue, may be used before they have a worker.
    """
    named = {name: count for name, count in models.items() if _names_queue(name)}
    infos = {name: await client.with_queue(name).queue_info() for name in named}
    if unknown := [name for name, info in infos.items() if not info.shards]:
        problem = (
            f"names a queue that this server does not have: {listed({n: named[n] for n in unknown})}; "
            "--queue NAME sends all lines to one queue; or start a worker with --queue of that name first"
        )
        raise InvalidRequest("body.model", unknown[0], problem)


def queues_of(models: Mapping[str, int], queue: str | None) -> list[str]:
    """The queues of lines with these models; `queue`: the one of all lines."""
    named = {DEFAULT_QUEUE, *(name for name in models if _names_queue(name))}
    return [queue] if queue else sorted(named)


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
