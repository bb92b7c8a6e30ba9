"""Keeps an engine running: starts it, waits until it is ready, gives it the jobs of the table, passes its
steps on, and starts the next one when it dies. A death costs no token: rows go on from what the table knows.

An engine that makes no progress for too long, or is silent (its beats come from a thread of their own), is
killed: it dies like any other.

Who is to blame for a death is decided here: jobs that the engine had are charged, and from `max_died` on
each of them is a suspect, which runs alone. Only a job that has killed `max_died_alone` engines alone is a
dead letter, and only engines count that had proved to work. Nobody is charged where the engine was busy with
itself between two steps (it compiles its model, say).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from millstream.wire.messages import ErrorInfo, State
from millstream.wire.timing import doubled, within
from millstream_worker.engine.config import EngineConfig, EngineInfo
from millstream_worker.engine.frames import (
    Beat,
    Frame,
    LastWords,
    LoadFailed,
    Loading,
    Ready,
)
from millstream_worker.engine.outputs import Refused, Step
from millstream_worker.engine.request import EngineRequest
from millstream_worker.engine_link import EngineLink, EnginePort, Silence
from millstream_worker.engine_queue import EngineQueue
from millstream_worker.jobs import Job, Phase
from millstream_worker.metrics import Metrics
from millstream_worker.table import JobTable
from millstream_worker.vitals import Vital

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_PROOF = EngineRequest(handle=0, prompt=(0,), max_tokens=1)  # jobs' handles begin at 1


class EngineCallbacks(Protocol):
    """What the supervisor reports, in the order in which it happens."""

    async def ready(self, info: EngineInfo) -> None:
        """An engine is ready and has no job yet. Raises Unusable."""

    def stepped(self, step: Step) -> None: ...

    def refused(self, refused: Refused) -> None: ...

    def gone(self) -> None:
        """The engine's output has ended."""


class Unusable(Exception):
    """What the engine loaded cannot be used here (its tokenizer, say); the message is for the operator."""


class Supervisor:
    """`failed` is set, with `failure`, when there will be no engine any more."""

    def __init__(
        self,
        argv: Sequence[str],
        config: EngineConfig,
        engine: EnginePort,
        table: JobTable,
        queue: EngineQueue,
        metrics: Metrics,
        callbacks: EngineCallbacks,
        vital: Vital,
        *,
        max_died: int,
        max_died_alone: int,
        restarts: int,
        progress_timeout_s: float,
        silence_timeout_s: float,
    ) -> None:
        self.failed = asyncio.Event()
        self.failure = ""
        self._argv = argv
        self._config = config
        self._engine = engine
        self._table = table
        self._queue = queue
        self._metrics = metrics
        self._callbacks = callbacks
        self._vital = vital
        self._max_died = max_died
        self._max_died_alone = max_died_alone
        self._restarts = restarts
        self._progress_timeout_s = progress_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._link: EngineLink | None = None
        self._stopping = asyncio.Event()
        self._deaths = 0  # in a row, without a step between them
        self.works = False  # an engine has computed something here
        self._proved = False  # so has the one that runs
        self._asked = False  # it was asked to
        self._aside = False  # it does work of its own, which no job has asked for

    async def run(self) -> None:
        """Until `stop`, or until there is no point in starting another engine."""
        with self._vital:
            while not self._stopping.is_set() and not self.failed.is_set():
                await self._run_one()
                if not self._stopping.is_set() and not self.failed.is_set():
                    await self._pause()

    async def stop(self, grace_s: float) -> None:
        """End the engine, kindly if it listens."""
        self._stopping.set()
        if self._link is not None:
            await self._link.stop(grace_s)

    @property
    def pids(self) -> list[int]:
        """Of the engine that runs, if there is one."""
        return [self._link.pid] if self._link is not None else []

    def try_prove(self) -> bool:
        """Whether the engine that runs has computed anything; where it has not, it is asked for one token."""
        if self._engine.up and not self._proved and not self._asked:
            self._asked = True
            self._engine.add(_PROOF)
        return self._proved

    def _has_worked(self) -> None:
        if not self._proved:
            self._proved = self.works = True
            self._queue.isolation_changed.notify()

    async def _run_one(self) -> None:
        self._proved = self._asked = self._aside = False
        try:
            self._link = link = await EngineLink.start(self._argv, self._config)
        except OSError as error:
            self._fail(f"the engine process {self._argv[0]!r} cannot be started: {error}")
            return
        _log.info("engine started", pid=link.pid)
        if self._stopping.is_set():  # by a `stop` that came before there was anything to stop
            link.kill()
        try:
            async for frame in link.frames():
                self._vital.turn()
                await self._take(link, frame)
            self._engine.unplug()
            self._callbacks.gone()
            exit_ = await link.reap()
        except BaseException:  # also cancelled: the worker ends by an error, and takes its engine along
            link.abandon()
            raise
        self._link = None
        lost = self._queue.engine_lost()
        if not self._stopping.is_set() and not self.failed.is_set():
            self._died(str(exit_), [] if self._aside else lost)

    async def _take(self, link: EngineLink, frame: Frame | Silence) -> None:
        match frame:
            case Step():
                self._aside = False
                if frame.tokens or frame.finished:
                    self._has_worked()
                if frame.tokens:
                    self._deaths = 0
                    self._vital.succeed()
                self._callbacks.stepped(frame)
            case Refused(handle):
                if handle == _PROOF.handle:  # so it answers
                    self._has_worked()
                self._callbacks.refused(frame)
            case Beat("step" | "loading" as phase, seconds) if seconds > self._progress_timeout_s:
                _log.error("engine makes no progress; it is killed", phase=phase, seconds=round(seconds))
                link.kill()
            case LastWords(message):
                _log.error("engine ends", reason=message)
            case Silence(seconds) if seconds >= self._longest_silence_s:
                _log.error("engine has stopped answering; it is killed", silent_s=round(seconds))
                link.kill()
            case Loading(message) if self._engine.up:
                self._aside = True
                _log.info("engine pauses", step=message)
            case Loading(message):
                _log.info("engine loading", step=message, seconds=round(link.age_s, 1))
            case Ready(info):
                await self._ready(link, info)
            case LoadFailed(message):
                self._fail(message)

    @property
    def _longest_silence_s(self) -> float:
        """Before it is ready, importing and reading weights may keep its beats back."""
        if self._engine.up:
            return self._silence_timeout_s
        return max(self._silence_timeout_s, self._progress_timeout_s)

    async def _ready(self, link: EngineLink, info: EngineInfo) -> None:
        _log.info(
            "engine ready",
            seconds=round(link.age_s, 1),
            model=info.model,
            device=info.device,
            dtype=info.dtype,
            attention=info.attention,
            token_capacity=info.token_capacity,
            max_rows=info.max_rows,
        )
        try:
            await self._callbacks.ready(info)
        except Unusable as error:
            self._fail(str(error))
            link.kill()
            return
        self._engine.plug(link)
        self._queue.engine_ready()

    def _died(self, how: str, jobs: Sequence[Job]) -> None:
        """`jobs` are charged."""
        self._deaths += 1
        self._metrics.engine_restarts.inc()
        _log.error("engine died", how=how, jobs=len(jobs), deaths_in_a_row=self._deaths)
        for job in jobs:
            if self._table.holds(job) and job.phase is not Phase.ENDED:
                self._charge(job, how)
        if self._deaths > self._restarts:
            self._fail(f"the engine died {self._deaths} times in a row, the last time by {how}")

    def _charge(self, job: Job, how: str) -> None:
        job.deaths += 1
        if self._queue.isolated is job and self._proved:
            job.deaths_alone += 1
        if job.losses >= self._max_died:
            self._table.suspect(job)
        if job.losses_alone >= self._max_died_alone:
            message = (
                f"engines or workers died {job.losses} times computing this job, {job.losses_alone} times "
                f"alone with it, the last time by {how}"
            )
            error = ErrorInfo(code="engine_died", message=message)
            self._table.conclude(job, State.FAILED, error, letter="engine_died")

    def _fail(self, message: str) -> None:
        self.failure = message
        self.failed.set()

    async def _pause(self) -> None:
        await within(self._stopping, doubled(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._deaths))
