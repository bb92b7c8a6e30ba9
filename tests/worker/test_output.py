"""One choice: whatever the order of steps and flushes, all deltas together are the text and ids of the
result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.messages.messages import ChoiceDelta
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text import TextModel


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
