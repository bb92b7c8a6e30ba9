"""Calls in one choice: they are given out piece by piece, whatever ends the answer, and none of its text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workers.choice_outputs import drawn, ended
from tokenizers import Tokenizer

from millstream.openai.chunks import ChatChoices
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta, calls_of
from millstream.wire.messages.codec import encode
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.script_replies import LogEntry
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.jobs.call_output import CallOutput, ToolCallMode, call_id
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

MODE = ToolCallMode("0-a", HERMES, {"get": ""}, "tool_calls")
CALLED = '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>'


def thinking(text: TextModel) -> ChoiceOutput:
    row = ChoiceOutput(
        1, text.detokenizer(["stop"], calls=True), watched=True, constrained=True, piece_bytes=40
    )
    row.thought = text.thought(ThoughtStart.OPEN)
    row.calling = CallOutput(MODE, 1)
    return row


@given(crash=st.integers(0, 80), flushes=st.sets(st.integers(0, 80)))
def test_thoughts_and_calls_go_on_from_any_place_of_their_log(
    thinker: tuple[TextModel, Tokenizer], crash: int, flushes: set[int]
) -> None:
    """A stop string in the thought ends nothing."""
    text, tokenizer = thinker
    ids = tokenizer.encode(f"I 🙂 stop.</think>\n\nSo\n{CALLED}").ids
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
    assert (whole.text, whole.reasoning_content, list(whole.token_ids)) == ("So", "I 🙂 stop.", ids)
    assert whole == Choice.model_validate(second.choice())
    assert calls_of([delta.model_copy(update={"finish_reason": None}) for delta in log]) == whole.tool_calls
    [call] = whole.tool_calls
    assert (call.id, call.function.arguments) == (call_id("0-a", 1, 0), '{"a": "x"}')
    assert (whole.finish_reason, whole.complete) == ("tool_calls", True)


BEGUN = CALLED[: CALLED.index(' "x"')]  # up to a part of its arguments
NAMELESS = CALLED[: CALLED.index('", "arg') - 1]


@pytest.mark.parametrize(
    ("said", "free", "fits", "complete", "content", "arguments"),
    [
        (f"x {CALLED}", True, True, True, "x", ['{"a": "x"}']),
        (CALLED[:-9], False, False, False, "", ['{"a": "x"}']),
        (f"{CALLED}\n{BEGUN}", False, False, False, "", ['{"a": "x"}', '{"a":']),
        (f"x{BEGUN}", True, False, False, "x", ['{"a":']),
        (f"x{NAMELESS}", True, False, False, "x", []), ("x\n<tool_c", True, False, None, "x", []),
        ("x <", True, False, None, "x <", []), ("only text ", True, True, None, "only text ", []),
        ("only te", True, False, None, "only te", []),
    ],
)  # fmt: skip
def test_calls_are_there_whatever_ends_an_answer(
    thinker: tuple[TextModel, Tokenizer],
    said: str,
    free: bool,
    fits: bool,
    complete: bool | None,
    content: str,
    arguments: list[str],
) -> None:
    text, tokenizer = thinker
    row = ChoiceOutput(0, text.detokenizer(calls=True), constrained=True)
    row.calling = CallOutput(replace(MODE, free=free), 0)
    row.ids += tokenizer.encode(said).ids
    row.reason, row.fits = ("stop" if fits else "length"), fits
    told = row.take()
    assert told is not None
    called = [call["function"]["arguments"] for call in told.get("tool_calls", ())]
    assert (told.get("complete"), told.get("text", ""), called) == (complete, content, arguments)
    assert told["finish_reason"] == (("tool_calls" if arguments else "stop") if fits else "length")
    assert [piece["arguments"] for piece in told.get("tool_call_deltas", ())] == arguments


@given(cut=st.integers(1, 60))
def test_an_answer_with_its_calls_as_text_goes_on_so(thinker: tuple[TextModel, Tokenizer], cut: int) -> None:
    """A worker of version 0.2.0 has begun it."""
    text, tokenizer = thinker
    ids = tokenizer.encode(f"So\n{CALLED}").ids
    cut = min(cut, len(ids))
    logged = ChoiceDelta(token_ids=tuple(ids[:cut]), text=text.detokenizer(calls=True).feed(ids[:cut]))
    row = ChoiceOutput(0, text.detokenizer(calls=True), constrained=True, calling=CallOutput(MODE, 0))
    row.resume([logged])
    row.ids += ids[cut:]
    row.reason, row.fits = "stop", True
    log = [logged, *(ChoiceDelta(**part) for part in ended(row))]
    choice = Choice.model_validate(row.choice())
    assert (choice.content, choice.complete) == ("So", True)
    assert [call.function.arguments for call in choice.tool_calls] == ['{"a": "x"}']
    spoken = ChatChoices(may_call=True)
    said = [one["delta"] for delta in log for one in spoken.of(delta)]
    assert "".join(one.get("content", "") for one in said) == "So"
    called = [call for one in said for call in one.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in called) == '{"a": "x"}'


MISFIT = "the arguments of get do not fit its parameters: $.a: 'x' is too short"


@given(flushes=st.sets(st.integers(0, 60)), lost=st.integers(0, 2))
def test_calls_that_do_not_fit_are_there_and_say_so(
    thinker: tuple[TextModel, Tokenizer], flushes: set[int], lost: int
) -> None:
    """Also where an attempt goes on from any part of a log, the end of which it may have."""
    text, tokenizer = thinker
    ids = tokenizer.encode(CALLED).ids
    first, second = (
        ChoiceOutput(0, text.detokenizer(calls=True), constrained=True, calling=CallOutput(MODE, 0))
        for _ in range(2)
    )
    told = drawn(first, ids, flushes)
    first.reason, first.fits, first.schema_error = "stop", True, MISFIT
    told += ended(first)
    assert ["schema_error" in part for part in told] == [False] * (len(told) - 1) + [True]
    log = [ChoiceDelta(**part) for part in told[: max(0, len(told) - lost)]]
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
def test_a_cut_answer_does_not_say_that_its_calls_misfit(
    thinker: tuple[TextModel, Tokenizer], stop: list[str]
) -> None:
    """By a stop string, or by a stop token behind the call."""
    text, tokenizer = thinker
    row = ChoiceOutput(0, text.detokenizer(stop, calls=True), None, CallOutput(MODE, 0), bool(stop), True)
    row.ids += tokenizer.encode(f"{CALLED}\n").ids
    row.reason, row.fits, row.schema_error = "stop", bool(stop), MISFIT
    assert row.feed() is bool(stop)
    told = row.take()
    assert told is not None
    assert (told["complete"], told["finish_reason"]) == (False, "stop")
    assert "schema_error" not in told
    assert len(told["tool_calls"]) == 1


@pytest.mark.parametrize("cut", [3, 30, 48])
def test_calls_in_another_form_of_an_older_worker_are_found(
    thinker: tuple[TextModel, Tokenizer], cut: int
) -> None:
    """Version 0.2.0 wrote Hermes' with any model, where calls were required."""
    text, tokenizer = thinker
    ids = tokenizer.encode(CALLED).ids
    logged = ChoiceDelta(token_ids=tuple(ids[:cut]), text="")
    row = ChoiceOutput(0, text.detokenizer(calls=True), constrained=True)
    row.calling = CallOutput(replace(MODE, form=CallForm("[TOOL_CALLS]", "[ARGS]", "")), 0)
    row.resume([logged])
    row.ids += ids[cut:]
    row.reason, row.fits = "stop", True
    ended(row)
    choice = Choice.model_validate(row.choice())
    assert (choice.content, choice.complete, choice.finish_reason) == (None, True, "tool_calls")
    assert [call.function.arguments for call in choice.tool_calls] == ['{"a": "x"}']
