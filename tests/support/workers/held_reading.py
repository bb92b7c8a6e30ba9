"""Reading a job's input, looked at and held: what workers of this process call in place of `prepare`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from millstream.wire.messages.script_replies import StartReply
from millstream_worker.intake.preparation.prepare_job import prepare
from millstream_worker.jobs.job import Job


class HeldReading:
    """A job of more bytes than `passes` comes into `jobs`, is shown to `look`, and waits for `go_on`."""

    def __init__(self, *, passes: int = 0) -> None:
        self.jobs: list[Job] = []
        self.go_on = threading.Event()
        self.passes = passes
        self.look: Callable[[Job, StartReply], None] = lambda job, started: None

    @property
    def begun(self) -> bool:
        return bool(self.jobs)

    def prepare(self, job: Job, started: StartReply, *rest: Any) -> None:
        if len(job.entry.payload) > self.passes:
            self.jobs.append(job)
            self.look(job, started)
            assert self.go_on.wait(30)
        prepare(job, started, *rest)
