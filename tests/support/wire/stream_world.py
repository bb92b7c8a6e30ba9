"""A job's token log, a stream's reader, and the connection between them, without a server: `World` is what is
there, `Writer` makes happen to it what workers, the server and the network may."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.client.streaming.events import EndEvent, Event, Transcript
from millstream.client.streaming.reader import PAGE_ENTRIES, StreamReader, Want
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.script_replies import JobRecord, LogEntry

JOB = "0-job"
MOST_READS = 100  # for one place: a reader that asks more often will ask for ever
NETWORK = ["deliver", "deliver", "repeat", "drop", "swap", "silence"]
SERVER = ["append", "append", "append", "attempt", "queue", "reconnect"]
LOSSES = ["crash", "crash and resume", "crash and start over"]


def delta(attempt: int, seq: int, text: str) -> LogEntry:
    return LogEntry(attempt, seq, "d", codec.encode(Delta(choices=(ChoiceDelta(text=text),))))


def marker(attempt: int, seq: int) -> LogEntry:
    return LogEntry(attempt, seq, "m", b"")


def end(attempt: int, seq: int, state: State = State.COMPLETED) -> LogEntry:
    return LogEntry(attempt, seq, "e", state.value.encode())


def record(state: State, result: bytes | None = None) -> JobRecord:
    return JobRecord(JOB, state, "batch", 1, 0, 1, "", 1, None, None, None, result, False)


def from_place(log: list[LogEntry], reader: StreamReader) -> list[LogEntry]:
    """The page of the log that the reader asks for."""
    place = reader.place
    return [one for one in log if (one.attempt, one.seq) >= (place.attempt, place.seq)][:PAGE_ENTRIES]


@dataclass
class World:
    """A job's log as the server has it, and one reader with the connection between them."""

    state: State = State.QUEUED
    log: list[LogEntry] = field(default_factory=list)
    result: Result | None = None
    reader: StreamReader = field(default_factory=lambda: StreamReader(JOB, jitter=lambda: 0.5))
    wire: list[LogEntry] = field(default_factory=list)  # published, not yet delivered
    seen: Transcript = field(default_factory=Transcript)
    events: list[Event] = field(default_factory=list)

    def write(self, entry: LogEntry) -> None:
        self.log.append(entry)
        self.wire.append(entry)

    def emit(self, events: list[Event]) -> None:
        for event in events:
            assert not self.events or not isinstance(self.events[-1], EndEvent), f"{event} after the end"
            self.events.append(event)
            self.seen.add(event)

    def read(self) -> None:
        """Answer the reader until it waits for messages or has ended."""
        stored = None if self.result is None else codec.encode(self.result)
        for _ in range(MOST_READS):
            if self.reader.want is Want.TAIL:
                self.emit(self.reader.tail(from_place(self.log, self.reader), self.state))
            elif self.reader.want is Want.WHOLE:
                self.emit(self.reader.whole(self.log, record(self.state, stored)))
            else:
                return
        raise AssertionError(f"the reader asks for ever: {self.reader.want}")

    def kept(self) -> str:
        """What the log says, markers applied."""
        parts: list[str] = []
        for entry in self.log:
            if entry.kind == "m":
                del parts[entry.seq :]
            elif entry.kind == "d":
                parts.append(codec.decode(Delta, entry.body).choices[0].text)
        return "".join(parts)


class Writer:
    """Drives a World by steps as workers, the server and the network might."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.attempt = 0
        self.last = 0  # number of the log's last entry
        self.written = 0
        self.old: list[LogEntry] = []

    def step(self, name: str, at: int) -> None:
        getattr(self, "do_" + name.replace(" ", "_"))(at)

    def do_append(self, at: int) -> None:
        if not self.attempt:
            self.do_attempt(at)
        self.last += 1
        self.written += 1
        self.world.write(delta(self.attempt, self.last, f"{self.written} "))

    def do_attempt(self, at: int) -> None:
        self.attempt += 1
        self.world.state = State.RUNNING
        self.world.write(marker(self.attempt, self.last))

    def do_queue(self, at: int) -> None:
        self.world.state = State.QUEUED

    def do_deliver(self, at: int) -> None:
        if self.world.wire:
            self.old.append(self.world.wire[0])
            self.world.emit(self.world.reader.messages([self.world.wire.pop(0)]))

    def do_repeat(self, at: int) -> None:
        if self.old:
            self.world.emit(self.world.reader.messages([self.old[at % len(self.old)]]))

    def do_drop(self, at: int) -> None:
        if self.world.wire:
            del self.world.wire[at % len(self.world.wire)]

    def do_swap(self, at: int) -> None:
        if wire := self.world.wire:
            wire.append(wire.pop(at % len(wire)))

    def do_silence(self, at: int) -> None:
        self.world.reader.silence()
        self.world.read()

    def do_reconnect(self, at: int) -> None:
        self.world.wire.clear()
        self.world.reader.lost()

    def do_crash(self, at: int) -> None:
        """The server loses its last writes; the worker rewrites them from memory: the same bodies."""
        log = self.world.log
        lost = [entry for entry in log[-(at % 4) :] if at % 4 and entry.kind == "d"]
        if not log or any(entry.kind == "m" for entry in log[-(at % 4) or len(log) :]):
            return
        del log[len(log) - len(lost) :]
        self._reconnect_all()
        for entry in lost:
            self.world.write(entry)

    def do_crash_and_resume(self, at: int) -> None:
        """The server loses its last writes, and another worker goes on from what is left."""
        self._lose(at % (len(self.world.log) + 1))
        self.do_attempt(at)

    def do_crash_and_start_over(self, at: int) -> None:
        """The server loses the whole log; attempts are counted from one again."""
        self._lose(0)
        self.do_attempt(at)
        for _ in range(at % 4):
            self.do_append(at)

    def _lose(self, keep: int) -> None:
        log = self.world.log
        del log[keep:]
        self.attempt = max((entry.attempt for entry in log), default=0)
        self.last = log[-1].seq if log else 0
        self.world.state = State.RUNNING if log else State.QUEUED
        self._reconnect_all()

    def _reconnect_all(self) -> None:
        self.old.clear()  # a connection's messages die with it
        self.do_reconnect(0)

    def end(self) -> None:
        """The job completes, and so does its log; messages of it may still be under way."""
        self.do_append(0)
        self.world.state = State.COMPLETED
        self.world.write(end(self.attempt, self.last + 1))
