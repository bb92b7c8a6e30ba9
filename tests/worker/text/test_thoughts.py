"""Thoughts before answers: where they begin and end, however the tokens are cut into calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import tokenizers
from support.models.spelling import with_words
from transformers import PreTrainedTokenizerFast

from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

TEXT = TextModel(PreTrainedTokenizerFast(tokenizer_object=with_words(tokenizers.build("byte-level"))))


def ids(text: str) -> list[int]:
    return with_words(tokenizers.build("byte-level")).encode(text).ids


def pieces(tokens: list[int], cuts: set[int]) -> Iterator[list[int]]:
    places = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    return (tokens[first:last] for first, last in pairwise(places))


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("user: hi\n", ThoughtStart.POSSIBLE),
        ("answer: <think>\n", ThoughtStart.OPEN),
        ("answer: <think>\n\n</think>\n\n", ThoughtStart.NONE),
        ("user: what is <think>?\n", ThoughtStart.POSSIBLE),
        ("user: what is </think>?\n", ThoughtStart.POSSIBLE),
        ("", ThoughtStart.POSSIBLE),
    ],
)
def test_the_end_of_a_prompt_says_whether_a_thought_is_open(prompt: str, start: ThoughtStart) -> None:
    assert TEXT.thought_start(ids(prompt)) is start


OUTPUTS = [  # start, output, thought, answer
    (ThoughtStart.OPEN, "It is 🙂.\n</think>\n\nYes.", "It is 🙂.\n", "Yes."),
    (ThoughtStart.OPEN, "</think>\n\nYes.</think>", "", "Yes.</think>"),
    (ThoughtStart.OPEN, "It is", "It is", ""),
    (ThoughtStart.OPEN, "\n\na <think> b</think> \n c", "a <think> b", " \n c"),
    (ThoughtStart.POSSIBLE, "<think>\nHm\n\nso</think>\n\nNo.\n", "Hm\n\nso", "No.\n"),
    (ThoughtStart.POSSIBLE, "<think>\n\n</think>\n\nNo.", "", "No."),
    (ThoughtStart.POSSIBLE, "\nNo <think>a</think>", "", "\nNo <think>a</think>"),
    (ThoughtStart.POSSIBLE, "", "", ""),
]


@pytest.mark.parametrize(("start", "output", "thought", "answer"), OUTPUTS)
@given(cuts=st.sets(st.integers(1, 40), max_size=6))
def test_a_thought_is_cut_from_the_answer(
    start: ThoughtStart, output: str, thought: str, answer: str, cuts: set[int]
) -> None:
    taker = TEXT.thought(start)
    assert taker is not None
    said, rest = "", []
    for piece in pieces(ids(output), cuts):
        taken = taker.feed(piece)
        said += taken.text
        rest += taken.answer
    assert said + taker.flush() == thought
    assert TEXT.detokenizer().feed(rest) == answer


def test_models_without_the_tokens_have_no_thoughts() -> None:
    plain = TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizers.build("byte-level")))
    assert plain.thought_start(ids("answer: <think>")) is ThoughtStart.NONE
    assert plain.thought(ThoughtStart.POSSIBLE) is None
    assert TEXT.thought(ThoughtStart.NONE) is None
    words = with_words(tokenizers.build("byte-level"))
    short = words.token_to_id("</think>")  # of a model that has no logit for it
    small = TextModel(PreTrainedTokenizerFast(tokenizer_object=words), vocab_size=short)
    assert (small.think, small.call_tokens) == (None, {})


def test_tokens_around_calls_are_text_where_calls_are_asked_for() -> None:
    """Some tokenizers have them as special ones, which are no text elsewhere."""
    tokenizer = tokenizers.build("byte-level")
    special = tokenizer.from_str(tokenizer.to_str())
    special.add_special_tokens(["<tool_call>", "</tool_call>"])
    model = TextModel(PreTrainedTokenizerFast(tokenizer_object=special))
    tokens = special.encode("<tool_call>\n{}\n</tool_call>").ids
    assert model.call_tokens == {"<tool_call>": tokens[0], "</tool_call>": tokens[-1]}
    assert model.detokenizer(calls=True).feed(tokens) == "<tool_call>\n{}\n</tool_call>"
    assert model.detokenizer().feed(tokens) == "\n{}\n"
