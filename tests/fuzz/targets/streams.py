"""The reader of a stream between a server's log and messages of which any may be lost, late, repeated, of
somebody else or no message at all: what it emits is the log's text, or it says why not."""

from __future__ import annotations

from random import Random
from typing import Any

from support.wire.stream_world import (
    JOB,
    LOSSES,
    MOST_READS,
    NETWORK,
    SERVER,
    World,
    Writer,
    from_place,
    record,
)  # fmt: skip

from fuzz import valid
from fuzz.target import Target
from fuzz.targets.queue import log_entries
from fuzz.values import blob, some, weighted
from millstream.client.streaming.cursor import Cursor
from millstream.client.streaming.events import EndEvent, Event, TokenEvent, Transcript
from millstream.client.streaming.reader import StreamReader, Want
from millstream.errors import CursorExpired, JobError, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.record import log_entry, merged_choices, parse_event
from millstream.wire.messages.script_replies import LogEntry

Step = tuple[str, Any]


# --- an honest log, messages of anybody


def _events(chance: Random) -> list[Step]:
    return some(chance, _step, 24)


def _step(chance: Random) -> Step:
    if chance.random() < 0.1:
        return "publish", _foreign(chance)
    losses = LOSSES if chance.random() < 0.1 else []
    return chance.choice([*NETWORK, *SERVER, *losses]), chance.randrange(1000)


def _foreign(chance: Random) -> bytes:
    """Garbage, and entries that join on but cannot be read, or are of other attempts. None that the worker
    could have written itself: who may publish those may write the log, too."""
    place = b"%d-%d" % (chance.randrange(9), chance.randrange(9))
    return weighted(
        chance,
        (1, blob),
        (1, lambda c: place + b" d \xc1" + blob(c)),
        (1, lambda c: place + b" %b x" % c.choice((b"e", b"?", b""))),
        (1, lambda c: b"%d-%d m " % (c.randrange(20, 30), c.randrange(1, 9))),
    )


def _follow(case: list[Step]) -> None:
    world = World()
    writer = Writer(world)
    world.read()
    for what, given in case:
        if what != "publish":
            writer.step(what, given)
        elif world.reader.want is Want.MESSAGES:
            _hear(world, given)
        if what == "publish" or given % 3:  # the read may come late
            world.read()
        lossy = any(one in LOSSES for one, _ in case)
        assert lossy or world.kept().startswith(world.seen.text())
    writer.end()
    for place in range(len(world.wire)):
        writer.step(NETWORK[place % len(NETWORK)], place)
    world.reader.silence()
    world.read()
    assert world.reader.want is Want.NOTHING, "the stream does not end"
    assert world.seen.text() == world.kept(), f"{world.seen.text()!r} is not {world.kept()!r}"
    assert sum(isinstance(event, EndEvent) for event in world.events) == 1, "it ends more than once"
    _resume_anywhere(world)


def _resume_anywhere(world: World) -> None:
    """Of a log that stays as it is: the events up to any cursor, and those from it on, are the whole."""
    whole = World(world.state, world.log)
    whole.read()
    for number, event in enumerate(whole.events, start=1):
        resumed = World(world.state, world.log, reader=StreamReader(JOB, Cursor.parse(event.cursor)))
        resumed.read()
        assert whole.events[:number] + resumed.events == whole.events, f"from {event.cursor}"


def _hear(world: World, message: bytes) -> None:
    """As the client does with what anybody has published."""
    try:
        world.emit(world.reader.messages([parse_event(message)]))
    except ProtocolError:
        world.reader.lost()


# --- a log of anybody


def _damaged(chance: Random) -> tuple[list[tuple[bytes, Any]], str, int, bytes | None]:
    """Entries of a log, the job's state, how many are read at first, and the stored result."""
    log = _whole_log(chance)
    for _ in range(chance.randrange(3)):
        place = chance.randrange(len(log) + 1)
        width, new = chance.choice(((1, 0), (0, 1), (1, 1), (2, 2)))  # lost, more, another, exchanged
        found = log[place : place + 2][::-1] if new == 2 else [log_entries(chance) for _ in range(new)]
        log[place : place + width] = found
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
    return [one for _, one in sorted({(one.attempt, one.seq): one for one in entries}.items())]


def _answer(reader: StreamReader, log: list[LogEntry], state: State, result: bytes | None) -> list[Event]:
    events: list[Event] = []
    for _ in range(MOST_READS):
        if reader.want is Want.TAIL:
            events += reader.tail(from_place(log, reader), state)
        elif reader.want is Want.WHOLE:
            events += reader.whole(log, record(state, result))
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
