"""The suite's own eyes: each of them is shown something wrong, and the same thing right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos import marks
from chaos.ledger import Ended, Entry, Order, Reading
from millstream import ChoiceDelta, EndEvent, RewindEvent, State, TokenEvent
from millstream.wire.messages.choices import Delta
from millstream.wire.messages.codec import encode
from millstream.wire.messages.replies import LogEntry

ORDER = Order("a", {}, ("w1 w2 w3", "w2 w3 w4"))


def log(*places: str) -> list[LogEntry]:
    """`1-0m 1-1d 1-2e`: attempt, number, kind."""
    entries = []
    for place in places:
        attempt, _, rest = place.partition("-")
        entries.append(LogEntry(int(attempt), int(rest[:-1]), rest[-1], b""))
    return entries


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
    assert marks.log_fault(log(*places), ended=True, lossy=False) == ""


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
    assert says in marks.log_fault(log(*places), ended=True, lossy=False)


def test_a_log_may_be_taken_back_only_where_writes_were_lost() -> None:
    taken_back = log("1-0m", "1-1d", "1-2d", "2-1m", "2-2d", "2-3e")
    assert "marker 2-1" in marks.log_fault(taken_back, ended=True, lossy=False)
    assert marks.log_fault(taken_back, ended=True, lossy=True) == ""


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


def test_ends() -> None:
    whole = Ended(State.COMPLETED, ORDER.texts, complete=(None, None))
    assert marks.ended_fault(whole, Entry("0-a", ORDER)) == ""
    assert "1 choices" in marks.ended_fault(Ended(State.COMPLETED, ORDER.texts[:1]), Entry("0-a", ORDER))
    failed = Ended(State.FAILED, (), "engine_died")
    assert "ended as failed (engine_died)" in marks.ended_fault(failed, Entry("0-a", ORDER))
    assert marks.ended_fault(failed, Entry("0-a", replace(ORDER, fails=frozenset({"engine_died"})))) == ""
    assert "must be one of nan" in marks.ended_fault(
        failed, Entry("0-a", replace(ORDER, fails=frozenset({"nan"})))
    )
    cancelled = Ended(State.CANCELLED, ("w1",))
    assert "ended as cancelled" in marks.ended_fault(cancelled, Entry("0-a", ORDER))
    assert marks.ended_fault(cancelled, Entry("0-a", ORDER, cancelled=True)) == ""
    ended = Entry("0-a", ORDER, cancelled=True, cancelled_at_once=True)
    assert "and was cancelled before" in marks.ended_fault(whole, ended)
    assert marks.ended_fault(cancelled, ended) == ""
    miscounted = Ended(State.COMPLETED, ORDER.texts, tokens=6, counted=7)
    assert "6 tokens, and its usage says 7" in marks.ended_fault(miscounted, Entry("0-a", ORDER))


def test_an_answer_is_said_to_be_whole_where_it_is() -> None:
    entry = Entry("0-a", replace(ORDER, complete=(True, False)))
    cut = Entry("0-a", entry.order, cancelled=True)

    def ended(state: State, texts: tuple[str, ...], *complete: bool | None) -> Ended:
        return Ended(state, texts, complete=complete)

    assert marks.ended_fault(ended(State.COMPLETED, ORDER.texts, True, False), entry) == ""
    assert "says complete" in marks.ended_fault(ended(State.COMPLETED, ORDER.texts, True, True), entry)
    assert "says complete" in marks.ended_fault(ended(State.COMPLETED, ORDER.texts, None, False), entry)
    assert "must be (None, None)" in marks.ended_fault(
        ended(State.COMPLETED, ORDER.texts, True, True), Entry("0-a", ORDER)
    )
    assert marks.ended_fault(ended(State.CANCELLED, ("w1 w2 w3", "w2"), True, None), cut) == ""
    assert "'w1' is complete" in marks.ended_fault(ended(State.CANCELLED, ("w1", ""), True, None), cut)


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
