"""The status of a job, for people: the fields that matter, with readable times."""

from __future__ import annotations

import time
from collections.abc import Iterator

from millstream.cli.display.terminal import answers, plain
from millstream.cli.display.times import age, local
from millstream.client.session.job_status import JobStatus

_TIMES = ("submitted", "started", "compiled", "admitted", "first_token", "finished")


def print_status(status: JobStatus) -> None:
    for name, text in _lines(status, time.time()):
        answers.out(f"{name:<16} {plain(text)}")


def _lines(status: JobStatus, now_s: float) -> Iterator[tuple[str, str]]:
    yield "id", status.id
    yield "state", f"{status.state}, to be cancelled" if status.cancel_requested else status.state
    yield "lane", status.lane
    if status.worker is not None:
        yield "worker", status.worker
    if status.attempt > 1:
        yield "attempts", str(status.attempt)
    if status.submits > 1:
        yield "submits", str(status.submits)
    if status.requeued_from is not None:
        yield "requeued from", status.requeued_from
    for name in _TIMES:
        if (at_ms := getattr(status, f"{name}_ms")) is not None:
            yield name.replace("_", " "), f"{local(at_ms)}  ({age(now_s - at_ms / 1000)} ago)"
