"""One choice: whatever the order of steps and flushes, all deltas together are the text and ids of the
result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models.spelling import with_words
from support.models.tokenizers import build
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.codec import encode
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.replies import LogEntry
from millstream_worker.intake.answer_form import has_thought_in_text
from millstream_worker.jobs.output import Calling, ChoiceOutput
from millstream_worker.text import TextModel, ThoughtStart
from millstream_worker.text.tool_calls import call_id


@pytest.fixture(scope="module")
def text(tokenizer: Path) -> TextModel:
    return TextModel.load(tokenizer)


def run(row: ChoiceOutput, ids: list[int], flushes: set[int]) -> list[dict[str, Any]]:
    """Draw these tokens one by one, flushing after those places; ends by length."""
    told = []
    for place, token in enumerate(ids):
        row.ids.append(token)
        if row.watched and row.feed():
            break
        if place in flushes and (delta := row.take()):
            told.append(delta)
    row.reason = row.reason or "length"
    last = row.take()
    assert last is not None
    assert row.take() is None
    return [*told, last]


STOPS = (["w3"], ["w2 w3"], ["w1 w2", "2 w3"], ["w9"])


@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    flushes=st.sets(st.integers(0, 11)),
    stop=st.sampled_from(STOPS),
)
def test_flushing_changes_nothing(
    text: TextModel, ids: list[int], flushes: set[int], stop: list[str]
) -> None:
    row = ChoiceOutput(0, text.detokenizer(stop), watched=True)
    told = run(row, ids, flushes)
    reference = ChoiceOutput(0, text.detokenizer(stop), watched=True)
    [whole] = run(reference, ids, set())
    assert "".join(part.get("text", "") for part in told) == whole.get("text", "")
    assert [i for part in told for i in part.get("token_ids", [])] == whole.get("token_ids", [])
    assert told[-1]["finish_reason"] == whole["finish_reason"]
    assert row.choice() == reference.choice()
    everything = " ".join(f"w{token}" for token in ids)
    found = min((everything.find(s) for s in stop if s in everything), default=None)
    if found is None:
        assert (whole.get("text"), whole["finish_reason"]) == (everything, "length")
    else:
        assert whole["finish_reason"] == "stop"
        assert everything.startswith(whole.get("text", ""))


@given(
    ids=st.lists(st.integers(0, 4), min_size=2, max_size=12),
    crash=st.integers(0, 11),
    flushes=st.sets(st.integers(0, 11)),
    stop=st.sampled_from(((), *STOPS)),
)
def test_a_row_taken_up_from_its_log_tells_the_same(
    text: TextModel, ids: list[int], crash: int, flushes: set[int], stop: list[str]
) -> None:
    """The next attempt draws again what was not logged."""
    watched = bool(stop)
    [whole] = run(ChoiceOutput(0, text.detokenizer(stop), watched=watched), ids, set())
    first = ChoiceOutput(0, text.detokenizer(stop), watched=watched)
    log = []
    for place, token in enumerate(ids[: crash + 1]):
        first.ids.append(token)
        if watched and first.feed():
            return  # it has ended before the crash
        if place in flushes and (delta := first.take()):
            log.append(ChoiceDelta(**delta))
    second = ChoiceOutput(0, text.detokenizer(stop), watched=watched)
    second.resume(log)
    rest = run(second, ids[len(second.ids) :], set()) if second.reason is None else [second.take()]
    told = [delta.model_dump(exclude_defaults=True) for delta in log] + [part for part in rest if part]
    assert "".join(part.get("text", "") for part in told) == whole.get("text", "")
    assert [i for part in told for i in part.get("token_ids", [])] == list(whole.get("token_ids", []))
    assert told[-1]["finish_reason"] == whole["finish_reason"]


@given(
    ids=st.lists(st.integers(0, 4), min_size=2, max_size=12),
    stop=st.sampled_from(((), *STOPS)),
    lost=st.integers(0, 12),
)
def test_a_row_told_in_pieces_goes_on_from_any_of_them(
    text: TextModel, ids: list[int], stop: list[str], lost: int
) -> None:
    """Pieces of two tokens; the last `lost` of them never came into the log."""
    watched = bool(stop)
    [whole] = run(ChoiceOutput(0, text.detokenizer(stop), watched=watched), ids, set())
    first = ChoiceOutput(0, text.detokenizer(stop), watched=watched, piece_bytes=10)
    for token in ids:
        first.ids.append(token)
        if watched and first.feed():
            break
    first.reason = first.reason or "length"
    pieces = [piece for _ in ids if (piece := first.take())]
    assert first.take() is None
    assert all(len(piece.get("token_ids", [])) <= 2 for piece in pieces)
    assert [piece.get("finish_reason") for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    log = [ChoiceDelta(**piece) for piece in pieces[: max(0, len(pieces) - lost)]]
    second = ChoiceOutput(0, text.detokenizer(stop), watched=watched)
    second.resume(log)
    rest = run(second, ids[len(second.ids) :], set()) if second.reason is None else [second.take()]
    told = [delta.model_dump(exclude_defaults=True) for delta in log] + [part for part in rest if part]
    assert "".join(part.get("text", "") for part in told) == whole.get("text", "")
    assert [i for part in told for i in part.get("token_ids", [])] == list(whole.get("token_ids", []))


CALLED = '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinker() -> tuple[TextModel, Tokenizer]:
    tokenizer = with_words(build("byte-level"))
    return TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer)), tokenizer


def thinking(text: TextModel) -> ChoiceOutput:
    row = ChoiceOutput(
        1, text.detokenizer(["stop"], calls=True), watched=True, constrained=True, piece_bytes=40
    )
    row.thought = text.thought(ThoughtStart.OPEN)
    row.calling = Calling("0-a", "tool_calls")
    return row


@given(crash=st.integers(0, 80), flushes=st.sets(st.integers(0, 80)))
def test_thoughts_and_calls_go_on_from_any_place_of_their_log(
    thinker: tuple[TextModel, Tokenizer], crash: int, flushes: set[int]
) -> None:
    """A stop string in the thought ends nothing."""
    text, tokenizer = thinker
    ids = tokenizer.encode(f"I 🙂 stop.</think>\n\n{CALLED}").ids
    first, log = thinking(text), []
    for place, token in enumerate(ids[: crash + 1]):
        first.ids.append(token)
        assert not first.feed()
        while place in flushes and (delta := first.take()):
            log.append(ChoiceDelta(**delta))
    second = thinking(text)
    second.resume(log)
    for token in ids[len(second.ids) :]:
        second.ids.append(token)
        assert not second.feed()
    second.reason, second.fits = "stop", True
    while delta := second.take():
        log.append(ChoiceDelta(**delta))
    [whole] = merged_choices([LogEntry(1, 1, "d", encode(Delta(choices=tuple(log))))])
    assert (whole.text, whole.reasoning_content, list(whole.token_ids)) == (CALLED, "I 🙂 stop.", ids)
    assert whole == Choice.model_validate(second.choice())
    [call] = whole.tool_calls
    assert (call.id, call.function.arguments) == (call_id("0-a", 1, 0), '{"a": "x"}')
    assert (whole.finish_reason, whole.complete) == ("tool_calls", True)


@pytest.mark.parametrize(
    ("said", "free", "fits", "complete"),
    [
        (f"x{CALLED}", True, True, True),
        (CALLED[:-9], False, False, False),
        (f"{CALLED}\n{CALLED[:-9]}", False, False, False),
        (f"x{CALLED[:-9]}", True, False, False),
        ("only text", True, True, None),
        ("only te", True, False, None),
    ],
)
def test_a_cut_answer_has_no_calls(
    thinker: tuple[TextModel, Tokenizer], said: str, free: bool, fits: bool, complete: bool | None
) -> None:
    text, tokenizer = thinker
    row = ChoiceOutput(
        0, text.detokenizer(calls=True), constrained=True, calling=Calling("0-a", "stop", free)
    )
    row.ids += tokenizer.encode(said).ids
    row.reason, row.fits = ("stop" if fits else "length"), fits
    told = row.take()
    assert told is not None
    assert (told.get("complete"), len(told.get("tool_calls", ()))) == (complete, complete is True)
    assert told["finish_reason"] == ("stop" if fits else "length")


def test_a_thought_that_an_earlier_version_logged_as_text_stays_text(
    thinker: tuple[TextModel, Tokenizer],
) -> None:
    text, tokenizer = thinker
    ids = tuple(tokenizer.encode("Hm 🙂</think>\n\nYes").ids)
    cases = [(0, "", "", False), (2, "Hm", "", True), (len(ids), "Hm 🙂</think>\n\nYes", "", True),
             (2, "", "Hm", False), (len(ids), "Yes", "Hm 🙂", False)]  # fmt: skip
    for taken, said, thought, expected in cases:
        delta = ChoiceDelta(token_ids=ids[:taken], text=said, reasoning_content=thought)
        assert has_thought_in_text([delta], text) is expected, delta
    empty = tuple(tokenizer.encode("</think>\n\nYes").ids)
    assert not has_thought_in_text([ChoiceDelta(token_ids=empty, text="Yes")], text)
