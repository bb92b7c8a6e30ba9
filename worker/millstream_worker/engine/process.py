"""The engine process: takes its configuration from the front, loads the model, then runs the batch loop until
the front says stop or goes away. It knows no Redis, no asyncio and no environment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream_worker.engine.channel import Channel, PeerGone
from millstream_worker.engine.config import EngineConfig, EngineInfo
from millstream_worker.engine.frames import (
    Abort,
    Add,
    Beat,
    Configure,
    Frame,
    LoadFailed,
    Loading,
    Ready,
    Stop,
)
from millstream_worker.engine.loop import Engine

Report = Callable[[str], None]
Build = Callable[[EngineConfig, Report], tuple[Engine[Any], EngineInfo]]

BEAT_S = 1.0


class CannotLoad(Exception):
    """The engine cannot run with this configuration; the message says why and what to change."""


@dataclass(slots=True)
class Phase:
    """What the process is in, and since when: the beat tells the front, whose watchdog tells slow from
    stuck.
    """

    name: str = "loading"
    since: float = field(default_factory=time.monotonic)

    def enter(self, name: str) -> None:
        self.since = time.monotonic()  # first: a beat between the two may take an idle hour for a step's
        self.name = name


def serve(channel: Channel, build: Build) -> int:
    """Run one engine for the front at the other end; answers the process' exit status."""
    phase = Phase()
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(channel, phase, ended), name="beat", daemon=True)
    beat.start()
    try:
        engine = _load(channel, build)
        return 1 if engine is None else _run(channel, engine, phase)
    except PeerGone:
        return 0
    finally:
        ended.set()
        beat.join()
        channel.close()


def _load(channel: Channel, build: Build) -> Engine[Any] | None:
    first = next(iter(channel.receive(None)))
    assert isinstance(first, Configure), f"the first frame must be Configure, not {type(first).__name__}"
    try:
        engine, info = build(first.config, lambda message: channel.send(Loading(message)))
    except CannotLoad as error:
        channel.send(LoadFailed(str(error)))
        return None
    channel.send(Ready(info))
    return engine


def _run(channel: Channel, engine: Engine[Any], phase: Phase) -> int:
    while True:
        if engine.idle:
            phase.enter("idle")
        news = list(channel.receive(None if engine.idle else 0.0))
        for frame in news:
            if isinstance(frame, Stop):
                return 0
            _take(channel, engine, frame)
        phase.enter("step")
        step = engine.step()
        if step is None and news:
            step = engine.report()  # an abort has freed rows and blocks: the front admits by these figures
        if step is not None:
            channel.send(step)


def _take(channel: Channel, engine: Engine[Any], frame: Frame) -> None:
    match frame:
        case Add(request):
            refused = engine.add(request)
            if refused is not None:
                channel.send(refused)
        case Abort(handles):
            engine.abort(handles)
        case _:
            raise AssertionError(f"the front does not send {type(frame).__name__}")


def _beat(channel: Channel, phase: Phase, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        channel.send(Beat(phase.name, time.monotonic() - phase.since))
