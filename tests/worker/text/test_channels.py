"""The channels of gpt-oss' answers: thoughts, the final text and calls, however the tokens are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import tokenizers
from support.models.call_templates import HARMONY, HARMONY_TOKENS
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.grammars.calls import call_form
from millstream_worker.intake.preparation.grammar_request import grammar_of, limits_of, thought_start
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart


def model(*left_out: str) -> TextModel:
    """With harmony's tokens, but for these."""
    tokenizer = tokenizers.build("byte-level")
    tokenizer = tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_special_tokens([name for name in HARMONY_TOKENS if name not in left_out])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = HARMONY
    return TextModel(fast)


TEXT = model()
POSSIBLE, OPEN, NONE = ThoughtStart.POSSIBLE, ThoughtStart.OPEN, ThoughtStart.NONE
NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Hm 🙂{NEXT}"
CALL = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>"


def ids(text: str) -> list[int]:
    return TEXT.encode(Request(prompt=text))


def read(start: ThoughtStart, output: str, cuts: set[int], *, calls: bool) -> tuple[str, str, bool]:
    """The thought, the answer, and whether this is over."""
    tokens = ids(output)
    reader, detokenizer = TEXT.thought(start, calls=calls), TEXT.detokenizer(calls=calls)
    assert reader is not None
    places = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    thought, answer, count = "", "", 0
    for begin, end in pairwise(places):
        taken = reader.feed(tokens[begin:end])
        thought, count = thought + taken.text, count + taken.skipped + len(taken.answer)
        answer += detokenizer.feed(taken.answer)
    assert count <= len(tokens)
    return thought + reader.flush(), answer + detokenizer.flush(), reader.answer_is_over


OUTPUTS: list[tuple[ThoughtStart, str, tuple[str, str, bool]]] = [
    (POSSIBLE, f"{THOUGHT}{FINAL}Yes 🙂.\n", ("Hm 🙂", "Yes 🙂.\n", False)),
    (POSSIBLE, f"{THOUGHT}{THOUGHT}{FINAL}<b>", ("Hm 🙂\nHm 🙂", "<b>", False)),
    (POSSIBLE, f"{FINAL}Yes{NEXT}{FINAL}more{NEXT}", ("", "Yes", True)),
    (
        POSSIBLE,
        f"{THOUGHT}<|channel|>commentary<|message|>I look{NEXT}{FINAL}a",
        ("Hm 🙂\nI look", "a", False),
    ),
    (POSSIBLE, "<|start|>assistant<|message|>Yes", ("", "Yes", False)),
    (POSSIBLE, f"{THOUGHT}<|channel|>comm", ("Hm 🙂", "", False)),
    (POSSIBLE, "<|channel|>analysis<|message|>Hm", ("Hm", "", False)),
    (POSSIBLE, "Yes <|channel|>", ("", "Yes ", False)),
    (POSSIBLE, f"<|channel|>{'x' * 400}", ("", "x" * 400, False)),
    (OPEN, f" so{NEXT}{FINAL}Yes", (" so", "Yes", False)),
    (OPEN, f" so{NEXT}{THOUGHT}{FINAL}Yes", (" so\nHm 🙂", "Yes", False)),
]


@pytest.mark.parametrize(("start", "output", "found"), OUTPUTS)
@given(cuts=st.sets(st.integers(1, 60), max_size=6))
def test_the_final_channel_is_the_answer(
    start: ThoughtStart, output: str, found: tuple[str, str, bool], cuts: set[int]
) -> None:
    assert read(start, output, cuts, calls=False) == found


@given(cuts=st.sets(st.integers(1, 60), max_size=6))
def test_a_call_is_answer_where_calls_are_asked_for(cuts: set[int]) -> None:
    called = f'{CALL}{{"a": 1}}'
    assert read(POSSIBLE, THOUGHT + called, cuts, calls=True) == ("Hm 🙂", called, False)
    assert read(POSSIBLE, called, cuts, calls=False) == ('{"a": 1}', "", False)


@pytest.mark.parametrize(
    ("last", "start"),
    [
        ([], POSSIBLE),
        ([{"role": "assistant", "content": "", "reasoning_content": "Hm"}], ThoughtStart.AMID),
        ([{"role": "assistant", "content": "Yes"}], NONE),
    ],
)
def test_the_prompt_tells_which_channel_is_open(last: list[dict[str, Any]], start: ThoughtStart) -> None:
    quoted = {"role": "user", "content": f"what is {FINAL}?"}
    asked = {
        "messages": [quoted, *last],
        "add_generation_prompt": not last,
        "continue_final_message": bool(last),
    }
    request = Request.model_validate(asked)
    prompt = TEXT.encode(request)
    assert thought_start(request, prompt, TEXT) is start
    assert TEXT.thought_start(prompt) is (OPEN if start is ThoughtStart.AMID else start)


def asked(**fields: Any) -> Request:
    get = {"name": "get", "parameters": '{"type": "object"}'}
    return Request.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": [get], **fields})


def test_the_form_of_calls_is_built_where_its_tokens_are() -> None:
    assert TEXT.call_form == call_form.HARMONY
    assert set(TEXT.call_tokens) == {"<|channel|>", "<|message|>", "<|constrain|>"}
    without = model("<|channel|>")
    assert without.call_form == call_form.HERMES
    with pytest.raises(InvalidRequest, match=r"not built here \(harmony, and the tokenizer lacks one of"):
        grammar_of(asked(), POSSIBLE, without, ())


def test_a_begun_answer_has_no_head_of_its_own() -> None:
    whole, begun = (grammar_of(asked(), start, TEXT, ()) for start in (POSSIBLE, NONE))
    assert whole is not None
    assert begun is not None
    assert begun.text == whole.text.replace('"<|channel|>final<|message|>"', '""')
    assert begun == replace(whole, text=begun.text, channels=None, thought_begin=None, thought_end=None)


def test_thoughts_in_channels_have_no_budget() -> None:
    request = asked(sampling={"thinking_token_budget": 3})
    with pytest.raises(InvalidRequest, match="by the tokens <think> and </think>"):
        limits_of(request, POSSIBLE, TEXT, TEXT.vocab_size)


def test_earlier_calls_are_written_by_the_template() -> None:
    call = {"id": "call_1", "function": {"name": "get", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "y"},
    ]  # fmt: skip
    assert TEXT.template.render(asked(messages=turns)).endswith(
        '<|start|>assistant to=functions.get<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        '<|start|>functions.get to=assistant<|channel|>commentary<|message|>"y"<|end|><|start|>assistant'
    )
