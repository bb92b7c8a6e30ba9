"""The engine process: takes its configuration from the front, loads the model, then runs the batch loop until
the front stops it or goes away. It knows no Redis, no asyncio and no environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.fatal_errors import last_words
from millstream_worker.engine.progress import Mark, Progress
from millstream_worker.engine.protocol.channel import Channel, PeerGone
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import (
    Abort,
    Add,
    BadFrame,
    Configure,
    DropImage,
    Found,
    Frame,
    HoldImage,
    LoadFailed,
    LoadProgress,
    Ready,
    Stop,
)
from millstream_worker.engine.protocol.outputs import Step

Report = Callable[[str], None]
Tell = Callable[[Found], None]
Build = Callable[[EngineConfig, Report, Mark, Tell], tuple[Engine[Any], EngineInfo]]

BEAT_S = 1.0
COMPILED_S = 0.005  # between two looks at grammars that are compiled, where there is nothing else to do
AUDIT_S = 0.5  # of idleness, before the audit of the KV pool: a request that comes soon must not wait for it
_EXIT_BROKEN = 1


class CannotLoad(Exception):
    """The engine cannot run with this configuration; the message says why and what to change."""


def serve(
    channel: Channel, build: Build, leave: Callable[[int], object] = os._exit, beat_s: float = BEAT_S
) -> int:
    """Run one engine for the front at the other end; returns the process' exit status. `leave` ends the
    process if its main thread does not notice that the front is gone.
    """
    progress = Progress()
    ended = threading.Event()

    def tell_of_life() -> None:
        forsaken = 0  # consecutive beats
        while not ended.wait(beat_s):
            forsaken = forsaken + 1 if channel.gone else 0
            if forsaken > 1:
                leave(0)
                return
            channel.send(progress.beat())

    beat = threading.Thread(target=tell_of_life, name="beat", daemon=True)
    beat.start()
    try:
        engine = _load(channel, build, progress)
        return _EXIT_BROKEN if engine is None else _run(channel, engine, progress)
    except PeerGone:
        return 0
    except (MemoryError, BadFrame) as error:
        channel.send(last_words(error))
        return _EXIT_BROKEN
    except Exception as error:
        channel.send(last_words(error))
        raise
    finally:
        ended.set()
        beat.join()
        channel.close()


def _load(channel: Channel, build: Build, progress: Progress) -> Engine[Any] | None:
    first = next(iter(channel.receive(None)))
    assert isinstance(first, Configure), f"the first frame must be Configure, not {type(first).__name__}"

    def report(message: str) -> None:
        progress.mark()
        channel.send(LoadProgress(message))

    try:
        engine, info = build(first.config, report, progress.mark, channel.send)
    except CannotLoad as error:
        channel.send(LoadFailed(str(error)))
        return None
    channel.send(Ready(info))
    return engine


def _run(channel: Channel, engine: Engine[Any], progress: Progress) -> int:
    audited = True  # nothing was computed since
    step: Step | None = None
    while True:
        if engine.idle:
            progress.enter("idle")
        news = list(channel.receive(_pause_s(engine, audited, step)))
        if not news and engine.idle:
            engine.check()
            audited = True
            continue
        for frame in news:
            if isinstance(frame, Stop):
                return 0
            _take(channel, engine, frame)
        compiled = engine.take_compiled()
        for report in compiled:
            channel.send(report)
        progress.enter("step")
        audited = False
        step = engine.step()
        if step is None and (news or compiled):
            step = engine.report()  # an abort has freed rows and blocks: the front admits by these statistics
        if step is not None:
            channel.send(step)
        due = engine.take_due()
        if due is not None:
            progress.enter("loading")  # it takes as long as loading, and is as deep inside of libraries
            due()


def _pause_s(engine: Engine[Any], audited: bool, step: Step | None) -> float | None:
    """How long to wait for the front after a step, or after finding nothing to compute; None: for ever."""
    if engine.idle:
        return None if audited else AUDIT_S
    return COMPILED_S if step is None else 0.0


def _take(channel: Channel, engine: Engine[Any], frame: Frame) -> None:
    match frame:
        case Add(request):
            refused = engine.add(request)
            if refused is not None:
                channel.send(refused)
        case HoldImage():
            engine.hold_image(frame)
        case DropImage():
            engine.drop_image(frame)
        case Abort(handles):
            engine.abort(handles)
        case _:
            raise AssertionError(f"the front does not send {type(frame).__name__}")
