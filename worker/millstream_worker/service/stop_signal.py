"""How far a worker has been asked to stop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class StopSignal:
    """`asked`: no new work. `limited`: running jobs get the grace period; without it they may finish.
    `hurried`: release all jobs at once.
    """

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    limited: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Stop taking work, end when the running jobs are done or the grace period is over."""
        self.limited.set()
        self.asked.set()

    def drain(self) -> None:
        """The operator's `end`. A second time: release the running jobs, end now."""
        if self.limited.is_set():
            self.hurried.set()
        self.end()
