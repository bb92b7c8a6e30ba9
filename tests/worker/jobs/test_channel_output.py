"""Choices of a model that answers in channels: thoughts, texts and calls are told apart through crashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workers.choice_outputs import drawn, ended
from tokenizers import Tokenizer

from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.codec import encode
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.script_replies import LogEntry
from millstream_worker.engine.grammars.calls.call_form import HARMONY
from millstream_worker.intake.preparation.grammar_request import has_thought_in_text
from millstream_worker.jobs.call_output import CallOutput, ToolCallMode
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

MODE = ToolCallMode("0-a", HARMONY, {"get": ""}, "tool_calls", free=True)
THOUGHT = "<|channel|>analysis<|message|>I 🙂 stop.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"a": "x"}'
HEAD = "<|channel|>final<|message|>"
FINAL = f"{HEAD}So 🙂"


def row_of(text: TextModel, *, calls: bool, stop: tuple[str, ...] = ()) -> ChoiceOutput:
    detokenizer = text.detokenizer(stop, calls=calls)
    row = ChoiceOutput(1, detokenizer, watched=True, constrained=calls, piece_bytes=40)
    row.thought = text.thought(ThoughtStart.POSSIBLE, calls=calls)
    row.calling = CallOutput(MODE, 1) if calls else None
    return row


def whole(log: list[ChoiceDelta]) -> Choice:
    [choice] = merged_choices([LogEntry(1, 1, "d", encode(Delta(choices=tuple(log))))])
    return choice


@given(crash=st.integers(0, 70), flushes=st.sets(st.integers(0, 70)), called=st.booleans())
def test_channels_go_on_from_any_place_of_their_log(
    channel_speaker: tuple[TextModel, Tokenizer], crash: int, flushes: set[int], called: bool
) -> None:
    text, tokenizer = channel_speaker
    ids = tokenizer.encode(THOUGHT + (CALL if called else FINAL)).ids
    log = [ChoiceDelta(**part) for part in drawn(row_of(text, calls=True), ids[: crash + 1], flushes)]
    row = row_of(text, calls=True)
    row.resume(log)
    row.ids += ids[len(row.ids) :]
    row.reason, row.fits = "stop", True
    log += [ChoiceDelta(**part) for part in ended(row)]
    choice = whole(log)
    assert choice == Choice.model_validate(row.choice())
    assert (choice.reasoning_content, list(choice.token_ids)) == ("I 🙂 stop.", ids)
    arguments = [call.function.arguments for call in choice.tool_calls]
    said = (choice.text, arguments, choice.finish_reason, choice.complete)
    assert said == (("", ['{"a": "x"}'], "tool_calls", True) if called else ("So 🙂", [], "stop", None))


@given(crash=st.integers(0, 70), flushes=st.sets(st.integers(0, 70)))
def test_an_answer_is_over_at_the_end_of_its_message(
    channel_speaker: tuple[TextModel, Tokenizer], crash: int, flushes: set[int]
) -> None:
    """What the model writes behind that is not told, wherever the flushes are."""
    text, tokenizer = channel_speaker
    ids = tokenizer.encode(f"{THOUGHT}{FINAL}<|end|>").ids
    more = tokenizer.encode(f"<|start|>assistant{FINAL}").ids
    log = [ChoiceDelta(**part) for part in drawn(row_of(text, calls=False), [*ids, *more][:crash], flushes)]
    row = row_of(text, calls=False)
    row.resume(log)
    if row.reason is None:
        log += [ChoiceDelta(**part) for part in drawn(row, [*ids, *more][len(row.ids) :], flushes)]
        assert row.reason == "stop"
    log += [ChoiceDelta(**part) for part in ended(row)]
    choice = whole(log)
    assert choice == Choice.model_validate(row.choice())
    assert (choice.text, choice.finish_reason, list(choice.token_ids)) == ("So 🙂", "stop", ids)


@pytest.mark.parametrize(
    ("output", "logged", "expected"),
    [
        (f"{HEAD}fine", "f", False), (f"{HEAD}fine", "finalf", True), (FINAL, "So 🙂", False),
        (THOUGHT, "analysisI", True), ("<|channel|>final", "fi", True), ("fine", "fi", False),
    ],
)  # fmt: skip
def test_a_log_tells_if_channels_were_apart(
    channel_speaker: tuple[TextModel, Tokenizer], output: str, logged: str, expected: bool
) -> None:
    """Earlier workers took the names of channels for text."""
    text, tokenizer = channel_speaker
    log = [ChoiceDelta(token_ids=tuple(tokenizer.encode(output).ids), text=logged)]
    assert has_thought_in_text(log, ThoughtStart.POSSIBLE, text) is expected


def test_stop_strings_end_the_final_message_only(channel_speaker: tuple[TextModel, Tokenizer]) -> None:
    text, tokenizer = channel_speaker
    row = row_of(text, calls=False, stop=("stop",))
    drawn(row, tokenizer.encode(f"{THOUGHT}{FINAL} stop it").ids, set())
    choice = whole([ChoiceDelta(**part) for part in ended(row)])
    found = choice.text, choice.reasoning_content, choice.finish_reason
    assert found == ("So 🙂 ", "I 🙂 stop.", "stop")
