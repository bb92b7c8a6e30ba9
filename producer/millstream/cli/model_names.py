"""What body.model of a run's lines means, told before anything is loaded or submitted: the name of a queue,
and nothing where one model answers all lines."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.batch.body import DEFAULT_QUEUE
from millstream.cli.stack import Stack
from millstream.cli.terminal import plain, say
from millstream.errors import InvalidRequest
from millstream.wire.keys import QueueKeys

MOST_NAMES = 5  # in one message


def say_who_answers(models: Mapping[str, int], model: str, queue: str) -> None:
    """One model answers all lines: said once, where they name others."""
    others = {name: count for name, count in models.items() if name not in ("", model, queue)}
    if others:
        say(f"body.model {_listed(others)}: answered by {model}, which answers all lines of this run")


async def check_queues(stack: Stack, models: Mapping[str, int]) -> None:
    """Raises InvalidRequest where lines name queues that were never used on this server: their jobs would
    wait for ever. The default queue may be used before it has a worker, and so may one given by --queue."""
    named = {name: count for name, count in models.items() if _names_queue(name)}
    if unknown := await stack.unused(named):
        problem = (
            f"names a queue that this server does not have: {_listed({n: named[n] for n in unknown})}; "
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


def _listed(models: Mapping[str, int]) -> str:
    ordered = sorted(models.items(), key=lambda item: -item[1])
    shown = [
        f"{plain(name)!r} in {count:,} line{'s' if count > 1 else ''}" for name, count in ordered[:MOST_NAMES]
    ]
    if len(ordered) > MOST_NAMES:
        shown.append(f"{len(ordered) - MOST_NAMES:,} other names")
    return ", ".join(shown)
