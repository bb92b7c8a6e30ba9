"""Watches the server of a batch run: tells the begin and the end of an outage, or of a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import NoReturn

from redis.exceptions import ResponseError

from millstream.batch.run.run import BatchRun
from millstream.cli.display.terminal import say, warn
from millstream.client.session.options import ClientOptions
from millstream.client.session.run_while import run_while
from millstream.errors import AccessDenied, Unavailable
from millstream.wire.connection import Endpoint, unavailable

ASK_S = 1.0  # between two questions to the server
SILENT_S = 3.0  # without an answer: a busy server, or a busy machine, is no outage
LOOK_S = 0.2
NO_DISK = "MISCONF"  # also the reply to a PING, of a server that cannot write to its disk
SETTLED_S = 15.0  # after a trouble, until workers are expected to have said that they live


@dataclass(frozen=True, slots=True)
class Trouble:
    """`short`: on the bar; `told`: as the message at its begin; `ended`: as the one at its end."""

    short: str
    told: str
    ended: str


class ServerWatch:
    """Asks one question at a time. A server that has never answered is the run's to report, which ends."""

    def __init__(self, url: str, run: BatchRun) -> None:
        self._endpoint = Endpoint.of(url)
        self._run = run
        self._since_s: float | None = None  # when the first question was asked that has no answer yet
        self._has_answered = False
        self._failure = ""  # of a question; "": it has no reply at all yet
        self._no_disk = ""
        self._told: Trouble | None = None
        self._told_since_s = self._over_s = float("-inf")

    @property
    def quiet(self) -> bool:
        """There is no trouble, and has not been for a while."""
        return self._trouble() is None and time.monotonic() - self._over_s > SETTLED_S

    def shown(self) -> str | None:
        """The trouble for the bar, with its seconds."""
        if self._told is None:
            return None
        return f"{self._told.short}, {time.monotonic() - self._told_since_s:.0f} s"

    async def watch(self) -> NoReturn:
        await run_while(self._ask(), self._tell())

    async def _ask(self) -> NoReturn:
        redis = self._endpoint.commands("millstream-cli", connections=1)
        try:
            while True:
                self._since_s = self._since_s or time.monotonic()
                try:
                    with contextlib.suppress(AccessDenied), unavailable(self._endpoint):
                        self._no_disk = await _ping(redis)
                    self._since_s, self._failure, self._has_answered = None, "", True
                except Unavailable as error:
                    self._failure = str(error).rstrip(".")
                await asyncio.sleep(ASK_S)
        finally:
            await redis.aclose()

    async def _tell(self) -> NoReturn:
        """One message at the begin of a trouble, or when it becomes one of another kind; one at the end."""
        while True:
            now_s, trouble = time.monotonic(), self._trouble()
            if trouble is None:
                if self._told is not None:
                    say(f"{self._told.ended} after {now_s - self._told_since_s:.0f} s")
                    self._over_s = now_s
            elif self._told is None or self._told.short != trouble.short:
                self._told_since_s = self._since_s or now_s
                warn(trouble.told)
            self._told = trouble
            await asyncio.sleep(LOOK_S)

    def _trouble(self) -> Trouble | None:
        if not self._has_answered:
            return None
        since_s, for_s = self._since_s, ClientOptions().reconnect_s
        if since_s is not None and (self._failure or time.monotonic() - since_s > SILENT_S):
            what = self._failure or f"Redis at {self._endpoint} does not answer"
            told = f"{what}; the run goes on if it answers within {for_s:.0f} s"
            return Trouble("server does not answer", told, "the server answers again")
        if reason := self._no_disk or self._run.ledger.barred:
            told = f"the server takes no writes: {reason}; the run goes on if it does within {for_s:.0f} s"
            return Trouble("server takes no writes", told, "the server takes writes again")
        return None


async def _ping(redis: object) -> str:
    """Returns the reason why the server cannot write to its disk, if it says so."""
    try:
        await redis.ping()  # type: ignore[attr-defined]
    except ResponseError as error:
        if str(error).startswith(NO_DISK):
            return str(error)
        raise
    return ""
