"""One choice: whatever the order of steps and flushes, all deltas together are the text and ids of the
result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workers.choice_outputs import drawn, ended, texts_of
from tokenizers import Tokenizer

from millstream.wire.messages.choices import ChoiceDelta
from millstream_worker.intake.preparation.grammar_request import has_thought_in_text
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart


@pytest.fixture(scope="module")
def text(tokenizer: Path) -> TextModel:
    return TextModel.load(tokenizer)


@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=12), flushes=st.sets(st.integers(0, 11)),
    stop=st.sampled_from(((), ["w3"], ["w2 w3"], ["w1 w2", "2 w3"], ["w9"])), crash=st.integers(0, 12),
    lost=st.integers(0, 12), piece_bytes=st.sampled_from((10, 10**6)),
)  # fmt: skip
def test_flushes_pieces_and_crashes_change_nothing(
    text: TextModel,
    ids: list[int],
    flushes: set[int],
    stop: list[str],
    crash: int,
    lost: int,
    piece_bytes: int,
) -> None:
    """An attempt ends after `crash` tokens, the last `lost` of its deltas never came into the log, and the
    next attempt draws again what was not logged."""

    def row(**options: Any) -> ChoiceOutput:
        return ChoiceOutput(0, text.detokenizer(stop), watched=bool(stop), **options)

    reference = row()
    [whole] = [*drawn(reference, ids, set()), *ended(reference)]
    everything = " ".join(f"w{token}" for token in ids)
    found = min((everything.find(one) for one in stop if one in everything), default=None)
    assert whole["finish_reason"] == ("length" if found is None else "stop")
    assert (
        whole.get("text", "") == everything if found is None else everything.startswith(whole.get("text", ""))
    )

    first = row(piece_bytes=piece_bytes)
    told = drawn(first, ids[:crash], flushes)
    if crash >= len(ids) or first.reason:
        told += ended(first)
        assert [part.get("finish_reason") for part in told] == [None] * (len(told) - 1) + [
            whole["finish_reason"]
        ]
        assert texts_of(told) == (whole.get("text", ""), whole.get("token_ids", []))
        assert first.choice() == reference.choice()
    if piece_bytes == 10:
        assert all(len(part.get("token_ids", [])) <= 2 for part in told)

    log = [ChoiceDelta(**part) for part in told[: max(0, len(told) - lost)]]
    second = row()
    second.resume(log)
    more = drawn(second, ids[len(second.ids) :], set()) if second.reason is None else []
    told = [delta.model_dump(exclude_defaults=True) for delta in log] + more + ended(second)
    text_told, ids_told = texts_of(told)
    assert (text_told, list(ids_told)) == (whole.get("text", ""), list(whole.get("token_ids", [])))
    assert [part["finish_reason"] for part in told if "finish_reason" in part] == [whole["finish_reason"]]


def test_a_thought_once_logged_as_text_stays_text(thinker: tuple[TextModel, Tokenizer]) -> None:
    text, tokenizer = thinker
    ids = tuple(tokenizer.encode("Hm 🙂</think>\n\nYes").ids)
    cases = [(0, "", "", False), (2, "Hm", "", True), (len(ids), "Hm 🙂</think>\n\nYes", "", True),
             (2, "", "Hm", False), (len(ids), "Yes", "Hm 🙂", False)]  # fmt: skip
    for taken, said, thought, expected in cases:
        delta = ChoiceDelta(token_ids=ids[:taken], text=said, reasoning_content=thought)
        assert has_thought_in_text([delta], ThoughtStart.OPEN, text) is expected, delta
    empty = tuple(tokenizer.encode("</think>\n\nYes").ids)
    logged = [ChoiceDelta(token_ids=empty, text="Yes")]
    assert not has_thought_in_text(logged, ThoughtStart.OPEN, text)


@pytest.mark.parametrize(
    ("special", "with_stop", "said"), [(0, 0, "a fox"), (1, 0, "<begin>a fox"), (1, 1, "<begin>a fox<end>")]
)
def test_an_end_token_is_text_where_both_are_asked_for(
    thinker: tuple[TextModel, Tokenizer], special: bool, with_stop: bool, said: str
) -> None:
    """As in vLLM. It counts as output anyway."""
    text, tokenizer = thinker
    row = ChoiceOutput(0, text.detokenizer(special=bool(special), with_stop=bool(with_stop)))
    row.ids += tokenizer.encode("<begin>a fox<end>").ids
    row.reason, row.end_token = "stop", True
    told = row.take()
    assert told is not None
    assert (told["text"], told["token_ids"]) == (said, row.ids)


def test_special_tokens_of_a_thought_stay_in_it(thinker: tuple[TextModel, Tokenizer]) -> None:
    text, tokenizer = thinker
    row = ChoiceOutput(0, text.detokenizer(["<begin>b"], special=True, with_stop=True), watched=True)
    row.thought = text.thought(ThoughtStart.POSSIBLE, special=True)
    row.ids += tokenizer.encode("<think>\n<begin>a</think>\n\n<end>no<begin>bc").ids
    assert row.feed()
    told = row.take()
    assert told is not None
    assert (told["reasoning_content"], told["text"]) == ("<begin>a", "<end>no<begin>b")
    assert told["token_ids"] == tokenizer.encode("<think>\n<begin>a</think>\n\n<end>no<begin>b").ids
