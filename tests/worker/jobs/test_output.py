"""One choice: whatever the order of steps and flushes, all deltas together are the text and ids of the
result."""

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
from millstream.wire.messages.script_replies import LogEntry
from millstream_worker.intake.grammar_request import has_thought_in_text
from millstream_worker.jobs.output import ChoiceOutput, ToolCallMode
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart
from millstream_worker.text.tool_calls import call_id


@pytest.fixture(scope="module")
def text(tokenizer: Path) -> TextModel:
    return TextModel.load(tokenizer)


def drawn(row: ChoiceOutput, ids: list[int], flushes: set[int]) -> list[dict[str, Any]]:
    """What is told as these tokens come one by one, with flushes after those places."""
    told = []
    for place, token in enumerate(ids):
        row.ids.append(token)
        if row.watched and row.feed():
            break
        if place in flushes and (delta := row.take()):
            told.append(delta)
    return told


def ended(row: ChoiceOutput) -> list[dict[str, Any]]:
    """By length, where it has not ended."""
    row.reason = row.reason or "length"
    told = []
    while delta := row.take():
        told.append(delta)
    return told


def texts_of(told: list[dict[str, Any]]) -> tuple[str, list[int]]:
    return "".join(part.get("text", "") for part in told), [
        token for part in told for token in part.get("token_ids", [])
    ]


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
    row.calling = ToolCallMode("0-a", "tool_calls")
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
        (f"x{CALLED}", True, True, True), (CALLED[:-9], False, False, False),
        (f"{CALLED}\n{CALLED[:-9]}", False, False, False), (f"x{CALLED[:-9]}", True, False, False),
        ("only text", True, True, None), ("only te", True, False, None),
    ],
)  # fmt: skip
def test_a_cut_answer_has_no_calls(
    thinker: tuple[TextModel, Tokenizer], said: str, free: bool, fits: bool, complete: bool | None
) -> None:
    text, tokenizer = thinker
    row = ChoiceOutput(
        0, text.detokenizer(calls=True), constrained=True, calling=ToolCallMode("0-a", "stop", free)
    )
    row.ids += tokenizer.encode(said).ids
    row.reason, row.fits = ("stop" if fits else "length"), fits
    told = row.take()
    assert told is not None
    assert (told.get("complete"), len(told.get("tool_calls", ()))) == (complete, complete is True)
    assert told["finish_reason"] == ("stop" if fits else "length")


MISFIT = "the arguments of get do not fit its parameters: $.a: 'x' is too short"


@given(flushes=st.sets(st.integers(0, 60)), lost=st.integers(0, 2))
def test_calls_that_do_not_fit_are_there_and_say_so(
    thinker: tuple[TextModel, Tokenizer], flushes: set[int], lost: int
) -> None:
    """Also where an attempt goes on from any part of a log, the end of which it may have."""
    text, tokenizer = thinker
    ids = tokenizer.encode(CALLED).ids
    options: dict[str, Any] = {"constrained": True, "calling": ToolCallMode("0-a", "tool_calls")}
    first = ChoiceOutput(0, text.detokenizer(calls=True), **options)
    told = drawn(first, ids, flushes)
    first.reason, first.fits, first.schema_error = "stop", True, MISFIT
    told += ended(first)
    assert ["schema_error" in part for part in told] == [False] * (len(told) - 1) + [True]
    log = [ChoiceDelta(**part) for part in told[: max(0, len(told) - lost)]]
    second = ChoiceOutput(0, text.detokenizer(calls=True), **options)
    second.resume(log)
    if second.reason is None:
        second.ids += ids[len(second.ids) :]
        second.reason, second.fits, second.schema_error = "stop", True, MISFIT
        log += [ChoiceDelta(**part) for part in ended(second)]
    whole = Choice.model_validate(second.choice())
    [merged] = merged_choices([LogEntry(1, 1, "d", encode(Delta(choices=tuple(log))))])
    assert merged == whole
    assert (whole.complete, whole.schema_error, whole.finish_reason) == (False, MISFIT, "tool_calls")
    assert [call.function.arguments for call in whole.tool_calls] == ['{"a": "x"}']


@pytest.mark.parametrize("stop", [["</tool"], []])
def test_a_cut_answer_with_a_call_that_does_not_fit_has_none(
    thinker: tuple[TextModel, Tokenizer], stop: list[str]
) -> None:
    """By a stop string, or by a stop token behind the call."""
    text, tokenizer = thinker
    calling = ToolCallMode("0-a", "tool_calls")
    row = ChoiceOutput(0, text.detokenizer(stop, calls=True), None, calling, bool(stop), True)
    row.ids += tokenizer.encode(f"{CALLED}\n").ids
    row.reason, row.fits, row.schema_error = "stop", bool(stop), MISFIT
    assert row.feed() is bool(stop)
    told = row.take()
    assert told is not None
    assert (told["complete"], told["finish_reason"]) == (False, "stop")
    assert "schema_error" not in told
    assert "tool_calls" not in told


def test_a_thought_once_logged_as_text_stays_text(thinker: tuple[TextModel, Tokenizer]) -> None:
    text, tokenizer = thinker
    ids = tuple(tokenizer.encode("Hm 🙂</think>\n\nYes").ids)
    cases = [(0, "", "", False), (2, "Hm", "", True), (len(ids), "Hm 🙂</think>\n\nYes", "", True),
             (2, "", "Hm", False), (len(ids), "Yes", "Hm 🙂", False)]  # fmt: skip
    for taken, said, thought, expected in cases:
        delta = ChoiceDelta(token_ids=ids[:taken], text=said, reasoning_content=thought)
        assert has_thought_in_text([delta], text) is expected, delta
    empty = tuple(tokenizer.encode("</think>\n\nYes").ids)
    assert not has_thought_in_text([ChoiceDelta(token_ids=empty, text="Yes")], text)


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
