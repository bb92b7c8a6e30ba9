"""The page of a queue, fitted to the screen that it is shown on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from millstream.cli.queue.cut_text import cut
from millstream.cli.queue.queue_head import short_head, whole_head
from millstream.cli.queue.worker_lines import all_workers, by_trouble, rest_line, worker_block, worker_lines
from millstream.client.session.queue_status import QueueStatus, WorkerStatus

UNUSED = "nobody has used this queue yet: no job was submitted, no worker has served it"
_ENDLESS = 10_000


@dataclass(frozen=True, slots=True)
class Screen:
    """`columns` and `lines` that a page may take; a file has no end of either."""

    columns: int = _ENDLESS
    lines: int = _ENDLESS
    wide: bool = False  # some lines for each worker, rather than one

    @property
    def less_one(self) -> Screen:
        return Screen(self.columns, self.lines - 1, self.wide)


def queue_page(status: QueueStatus, screen: Screen) -> list[str]:
    """Lines. If they are too many, the head becomes short, then the workers are those that something is to
    be said of, before the others, and what does not fit is counted.
    """
    if not status.shards:
        return [whole_head(status, screen.columns)[0], cut(UNUSED, screen.columns)]
    workers = all_workers(status)
    body = _body(workers, status.at_ms, screen)
    whole = [*whole_head(status, screen.columns), *([""] if workers and not screen.wide else []), *body]
    if len(whole) <= screen.lines:
        return whole
    head = short_head(status, screen.columns)
    if len(head) + len(body) <= screen.lines:
        return [*head, *body]
    workers.sort(key=by_trouble)
    return [*head, *_fitting(workers, status.at_ms, screen, screen.lines - len(head))][: screen.lines]


def _body(workers: Sequence[WorkerStatus], at_ms: int, screen: Screen) -> list[str]:
    if not screen.wide:
        return worker_lines(workers, at_ms, screen.columns)
    return [line for one in workers for line in ("", *worker_block(one, at_ms, screen.columns))]


def _fitting(workers: Sequence[WorkerStatus], at_ms: int, screen: Screen, lines: int) -> list[str]:
    """As many workers as there is room for, and a line of the others."""
    if screen.wide:
        sizes = (len(_body([one], at_ms, screen)) for one in workers)
        count = sum(total < lines for total in accumulate(sizes))
    else:
        count = max(0, lines - 2)  # the head of them and the line of the others take one each
    return [*_body(workers[:count], at_ms, screen), cut(rest_line(workers[count:]), screen.columns)]
