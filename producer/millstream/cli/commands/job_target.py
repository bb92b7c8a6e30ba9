"""The server and queue of a command's job, and the command that continues with it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from millstream.cli.display.transcript import Follower
from millstream.cli.embedded.stack import Stack, choose_model
from millstream.cli.shared.command_run import run_on_stack
from millstream.client.async_client import AsyncClient
from millstream.client.session.options import ClientOptions

Work = Callable[[Stack, AsyncClient], Awaitable[None]]


@dataclass(slots=True, eq=False)
class JobPlace:
    """The place of a job, and how far it was followed: shown to the user after an interruption."""

    redis_url: str | None
    queue: str
    job_id: str = ""
    follower: Follower | None = None
    options: ClientOptions = field(default_factory=ClientOptions)

    def run(self, work: Work, model: str | None, *, with_worker: bool) -> None:
        """Do the work with a client of the queue, on the given server or an embedded one."""
        local = choose_model(self.redis_url, model) if with_worker or self.redis_url else None
        run_on_stack(self.redis_url, self.queue, work, model=local, options=self.options)

    def how_to_go_on(self) -> str:
        if not self.job_id:
            return "interrupted"
        where = "" if self.queue == "default" else f" --queue {self.queue}"
        if self.redis_url and self.redis_url != os.environ.get("MILLSTREAM_REDIS_URL"):
            where += " --redis-url …"  # the URL is not repeated: it may hold a password
        if self.follower is None:
            return f"interrupted; the job goes on: millstream result {self.job_id} --wait{where}"
        cursor = f" --cursor {self.follower.cursor}" if self.follower.cursor else ""
        return f"interrupted; the job goes on: millstream stream {self.job_id}{cursor}{where}"
