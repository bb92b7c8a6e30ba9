"""Watches a queue: its page on the whole terminal, or one status below the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from rich.console import Group
from rich.live import Live
from rich.text import Text

from millstream.cli.display.terminal import answers, say, warn
from millstream.cli.display.times import age
from millstream.cli.queue.queue_page import Screen, queue_page
from millstream.client.async_client import AsyncClient
from millstream.client.session.queue_status import QueueStatus
from millstream.client.session.run_while import run_while
from millstream.errors import Unavailable

REFRESH_S = 2.0
_DRAW_S = 0.5
_SILENT_S = 2.0  # without an answer, from which on it is said


@dataclass(slots=True, eq=False)
class Watched:
    """The last answer, and since when there is none to the question after it (monotonic seconds)."""

    status: QueueStatus
    asked_s: float = inf

    def lines(self, screen: Screen, now: float) -> list[Text]:
        if now - self.asked_s < _SILENT_S:
            return [Text(line) for line in queue_page(self.status, screen)]
        trouble = Text(f"server does not answer, {age(now - self.asked_s)}", style="yellow")
        first, *others = (Text(line) for line in queue_page(self.status, screen.less_one))
        return [first, trouble, *others]


async def watch_screen(client: AsyncClient, status: QueueStatus, *, wide: bool) -> NoReturn:
    """On the terminal's other screen, where nothing stands above the page. What was shown last stays on the
    first screen.
    """
    watched = Watched(status)

    def lines() -> list[Text]:
        return watched.lines(Screen(answers.width, answers.height, wide), time.monotonic())

    try:
        with Live(console=answers, auto_refresh=False, screen=True) as live:
            await run_while(_draw(live, lines), _ask(client, watched))
    finally:
        answers.print(Group(*lines()))


async def watch_lines(
    client: AsyncClient, status: QueueStatus, show: Callable[[QueueStatus], None]
) -> NoReturn:
    """For a file or a program. An outage is two lines: at its start and at its end."""
    silent_s = inf  # since when
    while True:
        show(status)
        await asyncio.sleep(REFRESH_S)
        while (news := await _try(client, first=silent_s == inf)) is None:
            silent_s = min(silent_s, time.monotonic())
            await asyncio.sleep(REFRESH_S)
        if silent_s < inf:
            say(f"the server answers again after {age(time.monotonic() - silent_s)}")
        status, silent_s = news, inf


async def _draw(live: Live, lines: Callable[[], list[Text]]) -> NoReturn:
    while True:
        live.update(Group(*lines()), refresh=True)
        await asyncio.sleep(_DRAW_S)


async def _ask(client: AsyncClient, watched: Watched) -> NoReturn:
    while True:
        await asyncio.sleep(REFRESH_S)
        watched.asked_s = min(watched.asked_s, time.monotonic())
        with contextlib.suppress(Unavailable):  # the watcher wants to see the server come back
            watched.status = await client.queue_info()
            watched.asked_s = inf


async def _try(client: AsyncClient, *, first: bool) -> QueueStatus | None:
    try:
        return await client.queue_info()
    except Unavailable as error:
        if first:
            warn(str(error))
        return None
