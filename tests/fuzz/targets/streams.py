"""The reader of a stream between a server's log and messages of which any may be lost, late, repeated, of
somebody else or no message at all: what it emits is the log's text, or it says why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from fuzz import valid
from fuzz.target import Target
from fuzz.targets.queue import log_entries
from fuzz.values import blob, some
from millstream.client.streaming.cursor import Cursor
from millstream.client.streaming.events import EndEvent, Event, TokenEvent, Transcript
from millstream.client.streaming.reader import PAGE_ENTRIES, StreamReader, Want
from millstream.errors import CursorExpired, JobError, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.messages import Choice, ChoiceDelta, Delta, Result, State
from millstream.wire.messages.record import log_entry, merged_choices, parse_event
from millstream.wire.messages.replies import JobRecord, LogEntry

JOB = "0-job"
_MOST_READS = 20  # for one place: a reader that asks more often will ask for ever

Step = tuple[str, Any]


@dataclass(slots=True)
class World:
    """A job's log, and a reader with what is published between them."""

    reader: StreamReader = field(default_factory=lambda: StreamReader(JOB, jitter=lambda: 0.5))
    log: list[LogEntry] = field(default_factory=list)
    wire: list[LogEntry] = field(default_factory=list)
    attempt: int = 0
    seen: Transcript = field(default_factory=Transcript)
    ended: list[EndEvent] = field(default_factory=list)
    result: Result | None = None

    @property
    def seq(self) -> int:
        return next((one.seq for one in reversed(self.log)), 0)

    @property
    def over(self) -> bool:
        return bool(self.log) and self.log[-1].kind == "e"

    @property
    def state(self) -> State:
        return (
            State(self.log[-1].body.decode())
            if self.over
            else State.RUNNING
            if self.attempt
            else State.QUEUED
        )

    def step(self, what: str, given: Any) -> None:
        match what:
            case "begin" if not self.over:
                self.attempt += 1
                self._write(LogEntry(self.attempt, self.seq, "m", b""))
            case "say" if self.attempt and not self.over:
                body = codec.encode(Delta(choices=(ChoiceDelta(text=given, token_ids=(len(given),)),)))
                self._write(LogEntry(self.attempt, self.seq + 1, "d", body))
            case "end" if self.attempt and not self.over:
                self._write(LogEntry(self.attempt, self.seq + 1, "e", given.encode()))
            case "deliver":
                for place in given:
                    if self.wire:
                        self._hear([self.wire[place % len(self.wire)]])
            case "deliver all":
                self._hear(self.wire)
                self.wire = []
            case "drop":
                self.wire = []
            case "publish":  # by somebody else
                try:
                    self._hear([parse_event(given)])
                except ProtocolError:
                    self.reader.lost()
            case "silence":
                self.reader.silence()
            case "lose" | "forget" if not self.over:
                self._restart(*given, attempts=what == "forget")
        self.read()

    def _restart(self, lost: int, said: list[str], *, attempts: bool) -> None:
        """The server came back without its last writes, perhaps those of an attempt, whose number then comes
        again; the worker was faster than the reader."""
        del self.log[len(self.log) - min(lost, len(self.log)) :]
        if attempts:
            self.attempt = self.log[-1].attempt if self.log else 0
        self.step("begin", None)
        for text in said:
            self.step("say", text)
        self.wire = []
        self.reader.lost()

    def _write(self, entry: LogEntry) -> None:
        self.log.append(entry)
        self.wire.append(entry)

    def _hear(self, entries: list[LogEntry]) -> None:
        if self.reader.want is Want.MESSAGES:
            self._emit(self.reader.messages(entries))
            self.read()

    def read(self) -> None:
        """Answer the reader until it waits for messages or has ended."""
        for _ in range(_MOST_READS):
            if self.reader.want is Want.TAIL:
                place = self.reader.place
                tail = [one for one in self.log if (one.attempt, one.seq) >= (place.attempt, place.seq)]
                self._emit(self.reader.tail(tail[:PAGE_ENTRIES], self.state))
            elif self.reader.want is Want.WHOLE:
                self._emit(self.reader.whole(self.log, record(self.state, self.result)))
            else:
                return
        raise AssertionError(f"the reader asks for ever: {self.reader.want}")

    def _emit(self, events: list[Event]) -> None:
        for event in events:
            assert not self.ended, f"{event} after the end"
            self.seen.add(event)
            if isinstance(event, EndEvent):
                self.ended.append(event)

    def text(self) -> str:
        """What the log says, its markers applied."""
        parts: list[LogEntry] = []
        for entry in self.log:
            if entry.kind == "m":
                del parts[entry.seq :]
            elif entry.kind == "d":
                parts.append(entry)
        return "".join(choice.text for choice in merged_choices(parts))


def record(state: State, result: Result | None = None) -> JobRecord:
    stored = None if result is None else codec.encode(result)
    return JobRecord(JOB, state, "batch", 1, 0, 1, "", 1, None, None, None, stored, False)


# --- an honest log, messages of anybody


def _events(chance: Random) -> list[Step]:
    return [("begin", None), *some(chance, _step, 24)]


def _step(chance: Random) -> Step:
    what = chance.choice(
        ("say", "say", "say", "deliver", "deliver all", "drop", "publish", "silence", "lose", "begin", "end")
    )
    match what:
        case "say":
            return what, valid.words(chance)
        case "end":
            return ("end", chance.choice(valid.ENDS)) if chance.random() < 0.2 else ("silence", None)
        case "lose":
            said = some(chance, valid.words, 3)
            lost = (chance.choice(("lose", "forget")), (chance.randrange(1, 4), said))
            return lost if chance.random() < 0.3 else ("deliver all", None)
        case "deliver":
            return what, [chance.randrange(8) for _ in range(chance.randrange(4))]
        case "publish":
            return what, _foreign(chance)
        case _:
            return what, None


def _foreign(chance: Random) -> bytes:
    """Garbage, and entries that join on but cannot be read, or are of other attempts. None that the worker
    could have written itself: who may publish those may write the log, too."""
    match chance.randrange(4):
        case 0:
            return blob(chance)
        case 1:
            return b"%d-%d d \xc1" % (chance.randrange(9), chance.randrange(9)) + blob(chance)
        case 2:
            return b"%d-%d %b x" % (
                chance.randrange(9),
                chance.randrange(9),
                chance.choice((b"e", b"?", b"")),
            )
        case _:
            return b"%d-%d m " % (chance.randrange(20, 30), chance.randrange(1, 9))


def _follow(case: list[Step]) -> None:
    world = World()
    world.read()
    for what, given in case:
        world.step(what, given)
        if world.reader.want is not Want.NOTHING:
            lossy = any(one in ("lose", "forget") for one, _ in case)
            assert world.text().startswith(world.seen.text()) or lossy
    world.step("end", "completed")
    world.step("silence", None)
    assert world.reader.want is Want.NOTHING, "the stream does not end"
    assert world.seen.text() == world.text(), f"{world.seen.text()!r} is not {world.text()!r}"
    assert world.ended[0].state is world.state


# --- a log of anybody


def _damaged(chance: Random) -> tuple[list[tuple[bytes, Any]], str, int, bytes | None]:
    """Entries of a log, the job's state, how many are read at first, and the stored result."""
    log = _whole_log(chance)
    for _ in range(chance.randrange(3)):
        place = chance.randrange(len(log) + 1)
        match chance.randrange(4):
            case 0:
                log[place : place + 1] = []
            case 1:
                log.insert(place, log_entries(chance))
            case 2:
                log[place : place + 2] = reversed(log[place : place + 2])
            case _:
                log[place : place + 1] = [log_entries(chance)]
    result = codec.encode(Result(choices=(Choice(text="w1 w2 w3"),))) if chance.random() < 0.3 else None
    return log, chance.choice(valid.STATES), chance.randrange(len(log) + 1), result


def _whole_log(chance: Random) -> list[tuple[bytes, Any]]:
    log: list[tuple[bytes, Any]] = [(b"1-0", {b"k": b"m", b"b": b""})]
    count = chance.randrange(5)
    for seq in range(1, count + 1):
        part = ChoiceDelta(text=valid.words(chance), index=chance.choice((0, 0, 0, 1)))
        log.append((b"1-%d" % seq, {b"k": b"d", b"b": codec.encode(Delta(choices=(part,)))}))
    if chance.random() < 0.5:
        log.append((b"1-%d" % (count + 1), {b"k": b"e", b"b": chance.choice(valid.ENDS).encode()}))
    return log


def _read_damaged(case: tuple[list[tuple[bytes, Any]], str, int, bytes | None]) -> None:
    """The log comes in two halves, then whole. What was emitted is a part of it that has no hole."""
    raw, state, first, result = case
    log = _in_order(raw)
    reader, seen = StreamReader(JOB), Transcript()
    for entries in (log[:first], log, log):
        if reader.want is Want.NOTHING:
            break
        events = _answer(reader, entries, State(state), result)
        for event in events:
            seen.add(event)
        reader.silence()
    assert seen.text() in _possible(log, result), f"{seen.text()!r} is in no reading of the log"


def _in_order(raw: list[tuple[bytes, Any]]) -> list[LogEntry]:
    """As a server keeps them: by their ids, each of which comes once."""
    entries = [log_entry(*one) for one in raw]
    return sorted(
        {(one.attempt, one.seq): one for one in entries}.values(), key=lambda one: (one.attempt, one.seq)
    )


def _answer(reader: StreamReader, log: list[LogEntry], state: State, result: bytes | None) -> list[Event]:
    events: list[Event] = []
    for _ in range(_MOST_READS):
        if reader.want is Want.TAIL:
            place = reader.place
            events += reader.tail(
                [one for one in log if (one.attempt, one.seq) >= (place.attempt, place.seq)], state
            )
        elif reader.want is Want.WHOLE:
            stored = JobRecord(JOB, state, "batch", 1, 0, 1, "", 1, None, None, None, result, False)
            events += reader.whole(log, stored)
        else:
            return events
    raise AssertionError(f"the reader asks for ever: {reader.want}")


def _possible(log: list[LogEntry], result: bytes | None) -> set[str]:
    """The texts of the log's gap-free beginnings, with what the result adds."""
    texts, parts = {""}, []
    for entry in log:
        if entry.kind == "m":
            del parts[entry.seq :]
        elif entry.kind == "d" and entry.seq == len(parts) + 1:
            parts.append(entry)
            texts.add(_first_choice(parts))
        elif entry.kind == "e":
            break
    if result is not None:
        whole = codec.decode(Result, result).choices[0].text
        texts |= {text + whole[len(text) :] for text in texts}
    return texts


def _first_choice(parts: list[LogEntry]) -> str:
    return "".join(choice.text for choice in merged_choices(parts) if choice.index == 0)


# --- places to go on from


def _resume(chance: Random) -> tuple[int, list[tuple[bytes, Any]], str]:
    log = _whole_log(chance)
    return chance.randrange(9), log, chance.choice(valid.STATES)


def _read_resumed(case: tuple[int, list[tuple[bytes, Any]], str]) -> None:
    seq, raw, state = case
    log = _in_order(raw)
    reader, seen = StreamReader(JOB, Cursor(1, seq)), Transcript()
    for event in _answer(reader, log, State(state), None):
        if isinstance(event, TokenEvent):
            assert event.seq > seq or seq >= len(log)
        seen.add(event)


CLEAR = (ProtocolError, CursorExpired, JobError)
TARGETS = (
    Target("streams", _events, _follow, (), share=1.5),
    Target("damaged-logs", _damaged, _read_damaged, CLEAR, share=1.5),
    Target("resumed-streams", _resume, _read_resumed, CLEAR, share=1),
)
