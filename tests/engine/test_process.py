"""The engine process' own loop over a real socket pair, with a stand-in for the model."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.engine.brain import SIZES
from support.engine.counting import CountingRunner

from millstream_worker.engine import process
from millstream_worker.engine.brain.batch.plan import Sampled
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.engine import Engine, Later
from millstream_worker.engine.progress import Mark, Progress
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import (
    Abort,
    Add,
    Beat,
    Configure,
    Frame,
    FrameBuffer,
    LastWords,
    LoadFailed,
    LoadProgress,
    Ready,
    Stop,
    encode,
)
from millstream_worker.engine.protocol.outputs import Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest

INFO = EngineInfo("counting", "Counting", "float32", "cpu", "none", 1000, 64, (), 4, 64, 4, 1, 1, "")


def build(
    config: EngineConfig, report: process.Report, mark: Mark, tell: process.Tell
) -> tuple[Engine[object], EngineInfo]:
    if config.model != "counting":
        raise process.CannotLoad(f"no model called {config.model!r}; use 'counting'")
    report("counting up")
    return engine(), INFO


def engine(
    kind: type[Engine[object]] = Engine, runner: CountingRunner | None = None, **more: Any
) -> Engine[object]:
    limits = SchedulerConfig(**SIZES | {"max_rows": 4, "context_length": 64})
    return kind(Scheduler(limits), runner or CountingRunner(blocks=64, block_size=4, max_rows=4), **more)


def built(made: Engine[object]) -> process.Build:
    return lambda *_: (made, INFO)


@dataclass
class Setup:
    """What a test changes about the engine before the front speaks to it."""

    build: process.Build = build
    left: threading.Event = field(default_factory=threading.Event)


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
def setup() -> Setup:
    return Setup()


@pytest.fixture
def front(setup: Setup) -> Iterator[Front]:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    end = Front(ours)

    def serve() -> None:
        with contextlib.suppress(AssertionError):  # the process would end by it
            status = process.serve(
                Channel(theirs), lambda *given: setup.build(*given), lambda status: setup.left.set(), 0.05
            )
            end.status.append(status)

    serving = threading.Thread(target=serve)
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
    assert frames[:2] == [LoadProgress("counting up"), Ready(INFO)]
    drawn = [token for frame in frames if isinstance(frame, Step) for token in frame.tokens]
    assert drawn == [12, 13, 14]


def test_a_model_that_cannot_be_loaded_ends_with_one_message(front: Front) -> None:
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


def test_an_abort_that_empties_the_batch_reports_free_rows(front: Front) -> None:
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (1,), max_tokens=60)))
    front.until(lambda frame: isinstance(frame, Step) and bool(frame.tokens))
    front.send(Abort((1,)))
    front.until(lambda frame: isinstance(frame, Step) and frame.stats.free_rows == 4)


def test_work_for_a_busy_engine_is_done_between_two_steps(front: Front, setup: Setup) -> None:
    def build_with_work(
        config: EngineConfig, report: process.Report, mark: Mark, tell: process.Tell
    ) -> tuple[Engine[object], EngineInfo]:
        return engine(later=Later(0.0, lambda step_s: report("compiling"))), INFO

    setup.build = build_with_work
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (10, 11), max_tokens=3, priority=1)))
    frames = front.until(ended(1))
    told = [frame for frame in frames if not isinstance(frame, Beat)]
    assert [type(frame).__name__ for frame in told[1:]] == ["Step", "LoadProgress", "Step", "Step"]


def test_it_beats_while_idle(front: Front) -> None:
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


def test_a_front_that_dies_while_the_model_loads_is_noticed(front: Front, setup: Setup) -> None:
    loading = threading.Event()

    def load(
        config: EngineConfig, report: process.Report, mark: Mark, tell: process.Tell
    ) -> tuple[Engine[object], EngineInfo]:
        loading.set()
        assert setup.left.wait(20), "nobody has noticed"
        return build(config, report, mark, tell)

    setup.build = load
    front.send(Configure(EngineConfig("counting")))
    assert loading.wait(20)
    front.peer.close()
    assert setup.left.wait(20)


def test_a_front_that_sends_what_is_no_frame_gets_its_last_words(front: Front) -> None:
    front.send(Configure(EngineConfig("counting")))
    front.until(lambda frame: isinstance(frame, Ready))
    front.peer.sendall(b"\x00\x00\x00\x01\xc1")
    frames = front.until(lambda frame: isinstance(frame, LastWords))
    assert frames[-1].message.startswith("the front sent a bad frame: 1 bytes that are not a frame")
    assert front.peer.recv(1) == b""


class Failing(CountingRunner):
    def settle(self, handle: object) -> Sampled:
        raise AssertionError("slot 3 is taken")


def test_an_engine_that_has_to_end_says_why(front: Front, setup: Setup) -> None:
    setup.build = built(engine(runner=Failing(blocks=64, block_size=4, max_rows=4)))
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (1,), max_tokens=3)))
    words = front.until(lambda frame: isinstance(frame, LastWords))[-1]
    assert words == LastWords("a broken invariant: slot 3 is taken")
    assert front.peer.recv(1) == b""


def test_an_idle_engine_ends_when_its_audit_finds_a_lost_block(front: Front, setup: Setup) -> None:
    audits: list[int] = []

    class Leaking(Engine[object]):
        def check(self) -> None:
            audits.append(1)
            if len(audits) == 2:
                self.scheduler._running_rows.pool.take()  # a block that no row will give back
            super().check()

    setup.build = built(engine(Leaking))
    front.send(Configure(EngineConfig("counting")), Add(EngineRequest(1, (1,), max_tokens=6)))
    front.until(ended(1))
    while not audits:
        front.until(lambda frame: isinstance(frame, Beat))
    front.until(lambda frame: isinstance(frame, Beat))
    assert audits == [1]  # once, not with every look while nothing is computed
    front.send(Add(EngineRequest(2, (1,), max_tokens=6)))
    last = front.until(lambda frame: isinstance(frame, LastWords))[-1]
    assert isinstance(last, LastWords)
    assert last.message == "a broken invariant: reference counts are wrong"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_what_was_marked_not_that_the_process_lives() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.enter("step")
    assert progress.beat() == Beat("step", 0)
    for seconds in range(1, 9):
        clock.now += 1
        assert progress.beat() == Beat("step", seconds)
    progress.mark()
    clock.now += 1
    assert progress.beat() == Beat("step", 0)
    clock.now += 3600  # the process was stopped, and beats again
    assert progress.beat().seconds < 10
    progress.enter("idle")
    assert progress.beat() == Beat("idle", 0)


def test_loading_is_progress_while_it_works() -> None:
    clock, spent = Clock(), [0.0, 0]
    progress = Progress(clock, lambda: (spent[0], int(spent[1])))
    still = [progress.beat().seconds]
    for cpu, reads in ((0.01, 0), (0.02, 0), (0.05, 0), (0.05, 0), (0.05, 1)):
        clock.now += 1
        spent[:] = cpu, reads
        still.append(progress.beat().seconds)
    # a hundredth of the time is only waiting; then it has computed; then a block came from the disk
    assert still == [0, 1, 2, 0, 1, 0]
