"""The stream's state machine against a model of the log: whatever happens to live messages and to the last
writes of the server, what the reader emitted adds up to what the log holds."""

from __future__ import annotations

import random

import pytest
from support.wire.stream_world import (
    JOB,
    World,
    delta,
    end,
    marker,
    record,
)  # fmt: skip

from millstream.client.streaming.cursor import START, Cursor
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent
from millstream.client.streaming.reader import PAGE_ENTRIES, QUEUED_PATIENCE_S, StreamReader, Want
from millstream.errors import CursorExpired, InvalidRequest, NotFound, ProtocolError
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.script_replies import LogEntry


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TokenEvent)]


AB = [marker(1, 0), delta(1, 1, "a"), delta(1, 2, "b")]


@pytest.mark.parametrize(
    ("entries", "said", "want"),
    [
        ([delta(1, 3, "c"), delta(1, 4, "d"), end(1, 5)], ["c", "d"], Want.NOTHING),
        ([marker(2, 2), delta(2, 3, "c")], ["c"], Want.MESSAGES),  # a new attempt continues
        (AB, [], Want.MESSAGES),  # old ones are dropped
        ([delta(1, 4, "d"), delta(1, 3, "never taken out of turn")], [], Want.TAIL),
        ([delta(2, 3, "an attempt without its marker")], [], Want.TAIL),
        ([marker(2, 1)], [], Want.TAIL),
        ([marker(2, 3)], [], Want.TAIL),
        ([end(1, 5)], [], Want.TAIL),
        ([LogEntry(1, 3, "d", b"\xc1"), delta(1, 3, "c")], [], Want.TAIL),  # cannot be read
        ([LogEntry(1, 3, "e", b"nonsense")], [], Want.TAIL),
    ],
)
def test_messages_that_join_on_are_taken_others_cause_a_read(
    entries: list[LogEntry], said: list[str], want: Want
) -> None:
    world = World(State.RUNNING, AB)
    world.read()
    assert texts(world.reader.messages(entries)) == said
    assert world.reader.want is want
    taken = len(said) + (want is Want.NOTHING)
    assert world.reader.place == Cursor(2 if entries[0] == marker(2, 2) else 1, 2 + taken)


def test_a_long_log_is_read_in_pages() -> None:
    log = [
        marker(1, 0),
        *(delta(1, n, f"{n} ") for n in range(1, 3 * PAGE_ENTRIES)),
        end(1, 3 * PAGE_ENTRIES),
    ]
    world = World(State.COMPLETED, log)
    world.read()
    assert world.seen.text() == world.kept()


@pytest.mark.parametrize("text", ["", "a"])
def test_a_job_that_was_begun_more_often_than_a_page_has_entries(text: str) -> None:
    log = [marker(1, 0), *([delta(1, 1, text)] if text else [])]
    log += [marker(attempt, len(text)) for attempt in range(2, PAGE_ENTRIES + 3)]
    world = World(State.RUNNING, log)
    world.read()
    assert world.reader.want is Want.MESSAGES
    last = log[-1].attempt
    world.emit(world.reader.messages([delta(last, len(text) + 1, "b"), end(last, len(text) + 2)]))
    assert world.seen.text() == text + "b"
    assert world.reader.want is Want.NOTHING


@pytest.mark.parametrize(
    ("at", "state", "log", "rewound", "said"),
    [
        (
            START, State.RUNNING, [marker(1, 0), delta(1, 1, "ab"), marker(2, 1), delta(2, 2, "d")], "1-1",
            ["d"],
        ),
        (START, State.RUNNING, [marker(1, 0), delta(1, 1, "a"), delta(1, 2, "bd")], "0-0", ["a", "bd"]),
        (START, State.QUEUED, [], "0-0", []),
        (Cursor(1, 3), State.QUEUED, [], "0-0", []),  # of an earlier process, whose log the server has lost
        (Cursor(1, 3), State.RUNNING, [], "0-0", []),
        (
            Cursor(1, 2), State.RUNNING, [marker(1, 0), delta(1, 1, "a"), marker(2, 1), delta(2, 2, "b")],
            "1-1", ["b"],
        ),
    ],
)  # fmt: skip
def test_what_the_log_has_lost_is_taken_back(
    at: Cursor, state: State, log: list[LogEntry], rewound: str, said: list[str]
) -> None:
    """Also where a job starts over under the same number of its attempt. What comes then is read on."""
    world = World(
        State.RUNNING, [marker(1, 0), delta(1, 1, "ab"), delta(1, 2, "c")], reader=StreamReader(JOB, at)
    )
    if at == START:
        world.read()
    seen = len(world.events)
    world.state, world.log = state, log
    world.reader.lost()
    world.read()
    assert world.events[seen] == RewindEvent(rewound, int(rewound[2:]))
    assert texts(world.events[seen:]) == said
    assert world.reader.want is Want.MESSAGES
    last = max((entry.seq for entry in log), default=0)
    assert texts(world.reader.messages([marker(9, last), delta(9, last + 1, "e")])) == ["e"]


def test_a_marker_alone_that_is_lost() -> None:
    world = World(State.RUNNING, [marker(1, 0)])
    world.read()
    world.state, world.log = State.QUEUED, []
    world.reader.lost()
    world.read()
    assert world.events == []
    assert world.reader.place == START


def test_a_finished_job_without_a_log_is_told_from_its_result() -> None:
    result = Result(choices=(Choice(text="whole", finish_reason="stop"),))
    world = World(State.COMPLETED, result=result)
    world.read()
    assert texts(world.events) == ["whole"]
    assert world.events[-1] == EndEvent("0-2", JOB, State.COMPLETED)
    for event in world.events:  # nothing says how much of the result belongs to the cursor
        again = World(State.COMPLETED, result=result, reader=StreamReader(JOB, Cursor.parse(event.cursor)))
        with pytest.raises(CursorExpired):
            again.read()


def test_what_the_result_told_is_not_told_again() -> None:
    log = [marker(1, 0), delta(1, 1, "ab")]
    world = World(State.COMPLETED, log, Result(choices=(Choice(text="abc", finish_reason="stop"),)))
    world.read()
    assert texts(world.events) == ["ab", "c"]
    world.reader, world.events = StreamReader(JOB, Cursor.parse(world.events[1].cursor)), []
    world.read()
    assert world.seen.text() == "abc"


def test_an_end_marker_that_found_no_room() -> None:
    choices = (Choice(text="abc", token_ids=(1, 2, 3), finish_reason="stop"), Choice(index=1, text="x"))
    world = World(State.COMPLETED, [marker(1, 0), delta(1, 1, "ab")], Result(choices=choices))
    world.read()
    assert world.seen.text() == "abc"
    assert world.seen.text(1) == "x"
    assert isinstance(world.events[-1], EndEvent)


def test_a_cancelled_job_that_never_ran() -> None:
    world = World(State.CANCELLED, [end(0, 1, State.CANCELLED)])
    world.read()
    assert world.events == [EndEvent("0-1", JOB, State.CANCELLED)]


def test_a_cursor_without_its_log_is_expired() -> None:
    world = World(State.COMPLETED, result=Result(), reader=StreamReader(JOB, Cursor(1, 3)))
    with pytest.raises(CursorExpired, match="1-3"):
        world.read()


@pytest.mark.parametrize("place", [START, Cursor(1, 3)])
def test_no_such_job(place: Cursor) -> None:
    """Never submitted, or forgotten."""
    reader = StreamReader(JOB, place)
    assert reader.tail([], None) == []
    with pytest.raises(NotFound):
        reader.whole([], None)


def test_a_damaged_log_is_said_to_be() -> None:
    world = World(State.RUNNING, [marker(1, 0), delta(1, 2, "b")])
    with pytest.raises(ProtocolError, match="jumps from 0 to 1-2"):
        world.read()
    world = World(State.RUNNING, [marker(1, 0), LogEntry(1, 1, "d", b"\xc1")])
    with pytest.raises(ProtocolError):
        world.read()
    world = World(State.RUNNING, [LogEntry(0, 1, "e", b"\xff")])
    with pytest.raises(ProtocolError, match="unknown state"):
        world.read()


@pytest.mark.parametrize("read_at_first", [0, 3, 4])
def test_what_stands_behind_the_end_is_no_part_of_the_stream(read_at_first: int) -> None:
    log = [marker(1, 0), delta(1, 1, "a"), end(1, 2), delta(1, 3, "of a stranger"), end(1, 4)]
    world = World(State.RUNNING, log[:read_at_first])
    world.read()
    world.log = log
    world.reader.silence()
    world.read()
    assert texts(world.events) == ["a"]
    assert world.events[-1] == EndEvent("1-2", JOB, State.COMPLETED)
    whole = StreamReader(JOB)
    assert whole.whole(log, record(State.COMPLETED))[-1] == EndEvent("1-2", JOB, State.COMPLETED)


def test_patience_grows_while_a_job_waits_and_not_while_it_runs() -> None:
    world = World(reader=StreamReader(JOB, jitter=lambda: 0.5))
    world.read()
    waits = []
    for _ in range(6):
        waits.append(world.reader.patience_s)
        world.reader.silence()
        world.read()
    assert waits == [2, 4, 8, QUEUED_PATIENCE_S, QUEUED_PATIENCE_S, QUEUED_PATIENCE_S]
    world.state, world.log = State.RUNNING, [marker(1, 0)]
    world.reader.silence()
    world.read()
    assert world.reader.patience_s == 1


def test_patience_is_jittered() -> None:
    reader = StreamReader(JOB, jitter=random.Random(7).random)
    assert len({reader.patience_s for _ in range(10)}) == 10


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-2-3", "a-b", "1-2 ", "１-2", "9" * 19 + "-1", 5, b"1-2"]
)
def test_a_cursor_that_is_none(text: object) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        Cursor.parse(text)


def test_output_of_an_old_master_is_compared_before_the_end() -> None:
    """Messages come from the new master, which has lost attempt 2, while a connection still reads the old."""
    shared = [marker(1, 0), delta(1, 1, "a")]
    old = World(State.RUNNING, [*shared, marker(2, 1), delta(2, 2, "bc")])
    old.read()
    old.reader.lost()
    old.read()  # the same as before
    again = [marker(2, 1), delta(2, 2, "b"), delta(2, 3, "c")]
    old.emit(old.reader.messages([again[-1], end(2, 4)]))
    assert old.reader.want is Want.WHOLE
    old.emit(old.reader.whole([*shared, *again, end(2, 4)], record(State.COMPLETED)))
    assert old.seen.text() == "abc"
    assert old.reader.want is Want.NOTHING


def test_an_ended_log_is_compared_whole_after_a_lost_connection() -> None:
    """The new master's has the same entry at the reader's place, and another before it."""
    world = World(State.RUNNING, [marker(1, 0), delta(1, 1, "a"), delta(1, 2, "b")])
    world.read()
    world.reader.lost()
    world.emit(world.reader.tail([delta(1, 2, "b"), end(1, 3)], State.COMPLETED))
    assert world.reader.want is Want.WHOLE
    log = [marker(1, 0), delta(1, 1, "x"), delta(1, 2, "b"), end(1, 3)]
    world.emit(world.reader.whole(log, record(State.COMPLETED)))
    assert world.seen.text() == "xb"


def test_a_connection_lost_before_the_first_entry_is_checked_too() -> None:
    """It reads the old master's log from the start, and then follows the new one's messages."""
    world = World(State.RUNNING, [])
    world.read()
    world.reader.lost()
    world.log = [marker(1, 0), delta(1, 1, "ab")]
    world.read()
    again = [marker(1, 0), delta(1, 1, "a"), delta(1, 2, "b"), end(1, 3)]
    world.emit(world.reader.messages(again[2:]))
    world.emit(world.reader.whole(again, record(State.COMPLETED)))
    assert world.seen.text() == "ab"
