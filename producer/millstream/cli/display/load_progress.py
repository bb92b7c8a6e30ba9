"""Progress of the command's own worker while it loads its model: a line that changes on a terminal, elsewhere
a line per step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from rich.text import Text

from millstream.cli.display.terminal import errors, say

LOOK_S = 0.2
LINE_EVERY_S = 15.0  # if no step begins

Steps = Callable[[], Sequence[str]]  # begun since the last call


async def show_loading(steps: Steps, look_s: float = LOOK_S, line_every_s: float = LINE_EVERY_S) -> None:
    """Until cancelled."""
    loading = LoadingProgress(time.monotonic())
    if errors.is_terminal:
        await _status(loading, steps, look_s)
    else:
        await _lines(loading, steps, look_s, line_every_s)


class LoadingProgress:
    """The current step and its start. `now` in seconds. Behind a step's colon is how far it is."""

    def __init__(self, now: float) -> None:
        self._begun = self._entered = now
        self._step = "starting the worker"

    def try_enter(self, step: str, now: float) -> bool:
        """Enter the step; False if it is the current one, which may have got on."""
        if is_new := step.partition(":")[0] != self._step.partition(":")[0]:
            self._entered = now
        self._step = step
        return is_new

    def text(self, now: float) -> str:
        since = now - self._entered
        own = f" ({since:.0f} s)" if since >= 1 and self._entered > self._begun else ""
        return f"loading the model, {now - self._begun:.0f} s: {self._step}{own}"


async def _status(loading: LoadingProgress, steps: Steps, look_s: float) -> None:
    with errors.status("") as status:
        while True:
            now = time.monotonic()
            for step in steps():
                loading.try_enter(step, now)
            status.update(Text(loading.text(now)))  # wrapped, where it is longer than the line
            await asyncio.sleep(look_s)


async def _lines(loading: LoadingProgress, steps: Steps, look_s: float, every_s: float) -> None:
    said = -every_s
    while True:
        now = time.monotonic()
        for step in steps():
            if loading.try_enter(step, now):
                say(loading.text(now))
                said = now
        if now - said >= every_s:
            say(loading.text(now))
            said = now
        await asyncio.sleep(look_s)
