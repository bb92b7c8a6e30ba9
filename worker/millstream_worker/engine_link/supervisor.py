"""Keeps an engine running: starts it, waits until it is ready, reports its steps, and starts the next one
when it dies. A death costs no token: rows resume from the tokens that the front holds.

An engine that makes no progress for too long, or sends nothing (its beats come from a thread of their own),
is killed, and handled as if it had died. No job is charged with a death of an engine that had computed
nothing, or during the engine's own work between two steps (compiling its model, say), or by a device fault
after which a safer engine can be started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from millstream.wire.state.heartbeat import READING_TOKENIZER, STARTING_ENGINE
from millstream.wire.timing import doubled, within
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import (
    Beat,
    Fault,
    Found,
    Frame,
    LastWords,
    LoadFailed,
    LoadProgress,
    Ready,
    Tried,
)
from millstream_worker.engine.protocol.outputs import Compiled, Refused, Step
from millstream_worker.engine_link.link import EngineLink, EnginePort, Silence
from millstream_worker.engine_link.safe_mode import SafeMode
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.observe.watchdog import LoopWatch

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """The engine process' command line, without its `--fd`, and its configuration."""

    argv: Sequence[str]
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`restarts`: how many deaths in a row are followed by another start. The timeouts: seconds without
    progress, and without any frame, after which an engine is killed.
    """

    restarts: int
    progress_timeout_s: float
    silence_timeout_s: float


class EngineCallbacks(Protocol):
    """The supervisor's reports. They come in the order in which things happen."""

    def loading(self, step: str) -> None:
        """An engine that is not ready yet has begun this step of its start."""

    async def found(self, model: str, digest: str) -> None:
        """An engine is about to load this model. Raises Unusable."""

    async def ready(self, info: EngineInfo) -> None:
        """An engine is ready and has no job yet. Raises Unusable."""

    def stepped(self, step: Step) -> None: ...

    def refused(self, refused: Refused) -> None: ...

    def compiled(self, compiled: Compiled) -> None: ...

    def gone(self) -> None:
        """The engine's output has ended."""

    def died(self, how: str, jobs: Sequence[Job]) -> None:
        """The engine has ended unexpectedly. `how`: its exit. `jobs`: those to charge with it."""


class Unusable(Exception):
    """The model cannot be served although the engine can load it (its tokenizer is missing, say, or the queue
    has another model); the message is for the operator.
    """


@dataclass(slots=True, eq=False)
class Supervisor:
    """`failed` is set, and `failure` says why, when no engine will be started any more."""

    launch: EngineLaunch
    engine: EnginePort
    queue: EngineQueue
    callbacks: EngineCallbacks
    watch: LoopWatch
    limits: EngineLimits
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""
    _safe_mode: SafeMode = field(init=False)
    _link: EngineLink | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _deaths: int = 0  # in a row, without a step between them
    _aside: bool = False  # it does its own work (compiles, say)
    _last_words: LastWords | None = None
    _tried: Tried | None = None  # last, by an engine that starts

    def __post_init__(self) -> None:
        self._safe_mode = SafeMode(self.launch.config)

    async def run(self) -> None:
        """Runs engines until `stop`, or until starting another engine makes no sense."""
        with self.watch:
            while not self._stopping.is_set() and not self.failed.is_set():
                await self._run_one()
                if not self._stopping.is_set() and not self.failed.is_set():
                    await within(self._stopping, doubled(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._deaths))

    async def stop(self, grace_s: float) -> None:
        """Stop the engine; kill it after `grace_s`."""
        self._stopping.set()
        if self._link is not None:
            await self._link.stop(grace_s)

    @property
    def pids(self) -> list[int]:
        """Returns the process id of the running engine, if there is one."""
        return [self._link.pid] if self._link is not None else []

    async def _run_one(self) -> None:
        self._aside, self._last_words, self._tried = False, None, None
        try:
            self._link = link = await EngineLink.start(self.launch.argv, self._safe_mode.config)
        except OSError as error:
            self._fail(f"the engine process {self.launch.argv[0]!r} cannot be started: {error}")
            return
        _log.info("engine started", pid=link.pid)
        self.callbacks.loading(STARTING_ENGINE)
        if self._stopping.is_set():  # by a `stop` that came before there was anything to stop
            link.kill()
        try:
            async for frame in link.frames():
                self.watch.turn()
                await self._take(link, frame)
            self.engine.unplug()
            self.callbacks.gone()
            exit_ = await link.reap()
        except BaseException:  # also cancelled: the worker ends by an error, and takes its engine along
            link.abandon()
            raise
        self._link = None
        lost = self.queue.engine_lost()
        if not self._stopping.is_set() and not self.failed.is_set():
            self._died(str(exit_), lost)

    async def _take(self, link: EngineLink, frame: Frame | Silence) -> None:
        match frame:
            case Step():
                self._aside = False
                if frame.tokens or frame.finished:
                    self.queue.engine_worked()
                if frame.tokens:
                    self._deaths = 0
                    self.watch.succeed()
                self.callbacks.stepped(frame)
            case Refused(handle):
                self.queue.engine_refused(handle)
                self.callbacks.refused(frame)
            case Compiled():
                self.callbacks.compiled(frame)
            case Beat("step" | "loading" as phase, seconds) if seconds > self.limits.progress_timeout_s:
                _log.error("engine makes no progress; it is killed", phase=phase, seconds=round(seconds))
                link.kill()
            case LastWords(message, fault):
                self._last_words = frame
                _log.error("engine ends", reason=message, fault=str(fault))
            case Silence(seconds) if seconds >= self._longest_silence_s:
                _log.error("engine sends nothing; it is killed", silent_s=round(seconds))
                link.kill()
            case LoadProgress(message) if self.engine.up:
                self._aside = True
                _log.info("engine pauses", step=message)
            case LoadProgress(message):
                self._tried = frame.tried or self._tried
                if frame.is_step:
                    _log.info("engine loading", step=message, seconds=round(link.age_s, 1))
                    self.callbacks.loading(message)
                else:
                    _log.info("engine found", fact=message, seconds=round(link.age_s, 1))
            case Found(model, digest):
                await self._usable(link, self.callbacks.found(model, digest))
            case Ready(info):
                self._tried = None
                self._safe_mode.device = info.device
                fallbacks = (*self._safe_mode.reasons, *info.fallbacks)
                await self._ready(link, replace(info, fallbacks=fallbacks))
            case LoadFailed(message):
                self._fail(message)

    @property
    def _longest_silence_s(self) -> float:
        """Until it is ready, importing and reading weights may delay its beats."""
        if self.engine.up:
            return self.limits.silence_timeout_s
        return max(self.limits.silence_timeout_s, self.limits.progress_timeout_s)

    async def _ready(self, link: EngineLink, info: EngineInfo) -> None:
        _log.info(
            "engine ready",
            seconds=round(link.age_s, 1),
            **info.labels,
            token_capacity=info.token_capacity,
            max_rows=info.max_rows,
            self_check=info.self_check,
            fallbacks=info.fallbacks,
        )
        self.callbacks.loading(READING_TOKENIZER)
        if await self._usable(link, self.callbacks.ready(info)):
            self.engine.plug(link)
            self.queue.engine_ready()

    async def _usable(self, link: EngineLink, answer: Awaitable[None]) -> bool:
        try:
            await answer
        except Unusable as error:
            self._fail(str(error))
            link.kill()
        return not self.failed.is_set()

    def _died(self, exit_: str, lost: Sequence[Job]) -> None:
        """`lost`: the jobs that it had."""
        self._deaths += 1
        how = f"{exit_}: {self._last_words.message}" if self._last_words else exit_
        fault = self._last_words.fault if self._last_words else Fault.NONE
        safer = (fault is not Fault.NONE or self._deaths > 1) and self._safe_mode.step_down(how, self._tried)
        innocent = self._aside or not self.queue.engine_proved or (safer and fault is Fault.DEVICE)
        charged = [] if innocent else lost
        _log.error("engine died", how=how, jobs=len(charged), deaths_in_a_row=self._deaths)
        if safer:
            _log.warning("the next engine is a safer, slower one", reason=self._safe_mode.reasons[-1])
        self.callbacks.died(how, charged)
        if self._deaths > self.limits.restarts:
            self._fail(f"the engine died {self._deaths} times in a row, the last time by {how}")

    def _fail(self, message: str) -> None:
        self.failure = message
        self.failed.set()
