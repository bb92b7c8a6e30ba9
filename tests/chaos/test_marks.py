"""The suite's own eyes: each of them is shown something wrong, and the same thing right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos import marks
from chaos.ledger import Ended, Entry, Order, Reading
from millstream import ChoiceDelta, EndEvent, RewindEvent, State, TokenEvent
from millstream.wire.messages.choices import Delta
from millstream.wire.messages.codec import encode
from millstream.wire.messages.script_replies import LogEntry

ORDER = Order("a", {}, ("w1 w2 w3", "w2 w3 w4"))


def log(*places: str) -> list[LogEntry]:
    """`1-0m 1-1d 1-2e`: attempt, number, kind."""
    entries = []
    for place in places:
        attempt, _, rest = place.partition("-")
        entries.append(LogEntry(int(attempt), int(rest[:-1]), rest[-1], b""))
    return entries


def fault(*places: str, lossy: bool = False) -> str:
    return marks.log_fault(log(*places), ended=True, lossy=lossy)


@pytest.mark.parametrize(
    "places",
    [
        ("1-0m", "1-1d", "1-2d", "1-3e"),
        ("1-0m", "1-1d", "2-1m", "2-2d", "2-3e"),
        ("1-0m", "2-0m", "2-1e"),
        ("0-1e",),
        ("1-0m", "1-1d", "2-1m", "2-2e"),
    ],
)
def test_sound_logs(places: tuple[str, ...]) -> None:
    assert fault(*places) == ""


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("1-0m", "1-2d", "1-3e"), "1-2 comes after 1-0"),
        (("1-0m", "1-1d", "1-1d"), "1-1 comes after 1-1"),
        (("1-0m", "1-1d", "2-2d"), "2-2 comes after 1-1"),
        (("1-0m", "1-1d", "1-1m"), "marker 1-1 comes after 1-1"),
        (("1-0m", "1-1d", "2-0m"), "marker 2-0 comes after 1-1"),
        (("1-0m", "1-1e", "1-2d"), "end 1-1 comes after 1-0, at 2 of 3"),
        (("1-0m", "1-2e"), "end 1-2"),
        (("1-0m", "1-1d"), "no end marker"),
        ((), "no end marker"),
    ],
)
def test_unsound_logs(places: tuple[str, ...], says: str) -> None:
    assert says in fault(*places)


def test_a_log_may_be_taken_back_only_where_writes_were_lost() -> None:
    taken_back = ("1-0m", "1-1d", "1-2d", "2-1m", "2-2d", "2-3e")
    assert "marker 2-1" in fault(*taken_back)
    assert fault(*taken_back, lossy=True) == ""


def test_the_text_of_a_log_has_no_part_that_was_taken_back() -> None:
    def delta(attempt: int, seq: int, *texts: str) -> LogEntry:
        choices = tuple(ChoiceDelta(index=index, text=text) for index, text in enumerate(texts))
        return LogEntry(attempt, seq, "d", encode(Delta(choices=choices)))

    entries = [delta(1, 1, "a", "x"), delta(1, 2, "b"), LogEntry(2, 1, "m", b""), delta(2, 2, "c", "y")]
    assert marks.log_texts(entries, 2) == ["ac", "xy"]


@pytest.mark.parametrize(
    ("text", "whole", "kind"),
    [
        ("w1 w2 w3", True, ""),
        ("w1 w2", False, ""),
        ("w1 w2", True, "cut short"),
        ("w1 w2 w2 w3", True, "repeated"),
        ("w1 w3", False, "wrong"),
        ("w1 w2 w3 w4", False, "wrong"),
    ],
)
def test_texts(text: str, whole: bool, kind: str) -> None:
    assert marks.text_fault(text, "w1 w2 w3", whole=whole).partition(":")[0] == kind


WHOLE = Ended(State.COMPLETED, ORDER.texts, complete=(None, None))
FAILED = Ended(State.FAILED, (), "engine_died")
CANCELLED = Ended(State.CANCELLED, ("w1",))
AT_ONCE = {"cancelled": True, "cancelled_at_once": True}
DIES, IS_NAN = ({"order": replace(ORDER, fails=frozenset({code}))} for code in ("engine_died", "nan"))
HALF = {"order": replace(ORDER, complete=(True, False))}  # the second choice is cut


def told(state: State, texts: tuple[str, ...], *complete: bool | None) -> Ended:
    return Ended(state, texts, complete=complete)


@pytest.mark.parametrize(
    ("ended", "entry", "says"),
    [
        (WHOLE, {}, ""),
        (Ended(State.COMPLETED, ORDER.texts[:1]), {}, "1 choices"),
        (FAILED, {}, "ended as failed (engine_died)"),
        (FAILED, DIES, ""),
        (FAILED, IS_NAN, "must be one of nan"),
        (CANCELLED, {}, "ended as cancelled"),
        (CANCELLED, {"cancelled": True}, ""),
        (WHOLE, AT_ONCE, "and was cancelled before"),
        (CANCELLED, AT_ONCE, ""),
        (Ended(State.COMPLETED, ORDER.texts, tokens=6, counted=7), {}, "6 tokens, and its usage says 7"),
        (told(State.COMPLETED, ORDER.texts, True, False), HALF, ""),
        (told(State.COMPLETED, ORDER.texts, True, True), HALF, "says complete"),
        (told(State.COMPLETED, ORDER.texts, None, False), HALF, "says complete"),
        (told(State.COMPLETED, ORDER.texts, True, True), {}, "must be (None, None)"),
        (told(State.CANCELLED, ("w1 w2 w3", "w2"), True, None), HALF | {"cancelled": True}, ""),
        (
            told(State.CANCELLED, ("w1", ""), True, None),
            HALF | {"cancelled": True},
            "'w1' is complete",
        ),
    ],
)
def test_ends(ended: Ended, entry: dict[str, Any], says: str) -> None:
    found = marks.ended_fault(ended, Entry("0-a", **{"order": ORDER} | entry))
    assert says in found if says else found == ""


def test_readings() -> None:
    entry = Entry("0-a", ORDER)
    reading = Reading("follow")
    assert marks.reading_fault(reading, entry, None) == "never ended"
    choices = (ChoiceDelta(text="w1 w2 w3"), ChoiceDelta(index=1, text="w2 w3"))
    reading.transcript.add(TokenEvent("1-1", 1, choices))
    reading.state = EndEvent("1-2", "0-a", State.COMPLETED).state
    assert "cut short: 'w2 w3'" in marks.reading_fault(reading, entry, State.COMPLETED)
    reading.transcript.add(TokenEvent("1-2", 2, (ChoiceDelta(index=1, text=" w4"),)))
    assert marks.reading_fault(reading, entry, State.COMPLETED) == ""
    assert "said completed, and the job is failed" in marks.reading_fault(reading, entry, State.FAILED)
    reading.transcript.add(RewindEvent("1-2", 2))
    reading.rewinds = 1
    assert "to rewind" in marks.reading_fault(reading, entry, State.COMPLETED)
    entry.shaken = True
    assert marks.reading_fault(reading, entry, State.COMPLETED) == ""
