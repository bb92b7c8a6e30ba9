"""The engine process' own loop over a real socket pair, with a stand-in for the model."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from support.counting import CountingRunner

from millstream_worker.engine import process
from millstream_worker.engine.brain.scheduler import Scheduler, SchedulerConfig
from millstream_worker.engine.channel import Channel
from millstream_worker.engine.config import EngineConfig, EngineInfo
from millstream_worker.engine.frames import (
    Abort,
    Add,
    Beat,
    Configure,
    Frame,
    FrameBuffer,
    LoadFailed,
    Loading,
    Ready,
    Refused,
    Step,
    Stop,
    encode,
)
from millstream_worker.engine.loop import Engine
from millstream_worker.engine.request import EngineRequest

INFO = EngineInfo("counting", "Counting", "float32", "cpu", "none", 1000, 64, (), 4, 64, 4, 1, 1, "")


def build(config: EngineConfig, report: process.Report) -> tuple[Engine[object], EngineInfo]:
    if config.model != "counting":
        raise process.CannotLoad(f"no model called {config.model!r}; use 'counting'")
    report("counting up")
    limits = SchedulerConfig(
        max_rows=4,
        max_step_tokens=16,
        block_size=4,
        blocks=64,
        context_length=64,
        prefix_cache=True,
        hash_seed=b"",
    )
    return Engine(Scheduler(limits), CountingRunner(blocks=64, block_size=4, max_rows=4)), INFO


@dataclass
class Front:
    """The other end of the socket pair."""

    peer: socket.socket
    buffer: FrameBuffer = field(default_factory=FrameBuffer)
    status: list[int] = field(default_factory=list)

    def send(self, *frames: Frame) -> None:
        self.peer.sendall(b"".join(map(encode, frames)))

    def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """All frames up to the wanted one."""
        seen: list[Frame] = []
        while data := self.peer.recv(1 << 16):
            for frame in self.buffer.feed(data):
                seen.append(frame)
                if wanted(frame):
                    return seen
        raise AssertionError(f"the engine closed before the wanted frame: {seen}")


@pytest.fixture
def front() -> Iterator[Front]:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    end = Front(ours)
    serving = threading.Thread(target=lambda: end.status.append(process.serve(Channel(theirs), build)))
    serving.start()
    yield end
    ours.close()
    serving.join(timeout=20)
    assert not serving.is_alive()


def ended(handle: int) -> Callable[[Frame], bool]:
    return lambda frame: isinstance(frame, Step) and handle in dict(frame.finished)


def test_it_loads_then_answers_each_row_with_its_tokens(front: Front) -> None:
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (10, 11), max_tokens=3)))
    frames = front.until(ended(1))
    assert frames[:2] == [Loading("counting up"), Ready(INFO)]
    drawn = [token for frame in frames if isinstance(frame, Step) for token in frame.tokens]
    assert drawn == [12, 13, 14]


def test_a_model_that_cannot_be_loaded_is_one_message_and_an_exit_status(front: Front) -> None:
    front.send(Configure(EngineConfig("other")))
    frames = front.until(lambda frame: isinstance(frame, LoadFailed))
    assert frames[-1] == LoadFailed("no model called 'other'; use 'counting'")
    assert front.peer.recv(1) == b""


def test_a_refusal_goes_back_and_the_rest_goes_on(front: Front) -> None:
    front.send(
        Configure(EngineConfig("counting")),
        Add(EngineRequest(1, tuple(range(100)), max_tokens=3)),
        Add(EngineRequest(2, (1,), max_tokens=2)),
    )
    frames = front.until(ended(2))
    assert [frame.handle for frame in frames if isinstance(frame, Refused)] == [1]


def test_an_abort_that_empties_the_batch_reports_the_room_it_made(front: Front) -> None:
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (1,), max_tokens=60)))
    front.until(lambda frame: isinstance(frame, Step) and bool(frame.tokens))
    front.send(Abort((1,)))
    front.until(lambda frame: isinstance(frame, Step) and frame.stats.free_rows == 4)


def test_it_beats_while_idle(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    front.send(Configure(EngineConfig("counting")))
    beat = front.until(lambda frame: isinstance(frame, Beat) and frame.phase == "idle")[-1]
    assert isinstance(beat, Beat)
    assert beat.seconds >= 0


@pytest.mark.parametrize("running", [False, True], ids=["idle", "running"])
@pytest.mark.parametrize("how", ["stop", "gone"])
def test_it_ends_when_told_or_when_the_front_is_gone(front: Front, running: bool, how: str) -> None:
    front.send(Configure(EngineConfig("counting")))
    if running:
        front.send(Add(EngineRequest(1, (1,), max_tokens=60)))
    front.until(lambda frame: isinstance(frame, Step if running else Ready))
    if how == "stop":
        front.send(Stop())
        while front.peer.recv(1 << 16):
            pass
    else:
        front.peer.shutdown(socket.SHUT_RDWR)
