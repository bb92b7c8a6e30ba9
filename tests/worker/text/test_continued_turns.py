"""The last message as the beginning of the answer: what the prompt ends with, and where a thought is."""

from __future__ import annotations

from typing import Any

import pytest
from support.models import tokenizers
from support.models.spelling import with_words
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.intake.preparation.grammar_request import grammar_of, thought_start
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = CHATML.replace("m.content", "m.content | trim")
PARTS = CHATML.replace("m.content", "m.content[0].text")
THINKING = (  # as Qwen3's
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set said = m.content %}"
    "{% if m.role == 'assistant' %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1] %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}"
    "{% if thought %}<think>\n{{ thought.strip('\\n') }}\n</think>\n\n{% endif %}{{ said.lstrip('\\n') }}"
    "{% else %}{{ said }}{% endif %}<|im_end|>\n{% endfor %}"
)
USER = {"role": "user", "content": "x"}


def model_of(template: str, kind: str = "byte-level") -> TextModel:
    tokenizer = with_words(tokenizers.build(kind))
    return TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template))


def asked(**last: Any) -> Request:
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    return Request.model_validate({"messages": [USER, {"role": "assistant"} | last]} | fields)


@pytest.mark.parametrize(
    ("template", "content", "end"),
    [
        (CHATML, "Once P", "assistant\nOnce P"), (CHATML, "Once P \n", "assistant\nOnce P \n"),
        (CHATML, "", "assistant\n"), (TRIMMED, " Once P \n", "assistant\nOnce P"),
        (PARTS, "Once P", "assistant\nOnce P"), (THINKING, "Once P", "assistant\nOnce P"),
        (THINKING, "<think>\nHm", "assistant\n<think>\nHm"),
        (THINKING, "<think>\nHm\n</think>\n\nOnce", "assistant\n<think>\nHm\n</think>\n\nOnce"),
        (CHATML, "a probe_end_of_text b", "assistant\na probe_end_of_text b"),
    ],
)  # fmt: skip
def test_a_prompt_ends_behind_the_last_text(template: str, content: str, end: str) -> None:
    text = model_of(template).template.render(asked(content=content))
    assert text == f"<|im_start|>user\nx<|im_end|>\n<|im_start|>{end}"


def test_the_cut_is_that_of_transformers() -> None:
    for template in (CHATML, TRIMMED, THINKING):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.build("byte-level"), chat_template=template
        )
        turns = [USER, {"role": "assistant", "content": " Once P \n"}]
        wanted = tokenizer.apply_chat_template(turns, tokenize=False, continue_final_message=True)
        assert TextModel(tokenizer).template.render(asked(content=" Once P \n")) == wanted


@pytest.mark.parametrize(
    ("template", "last", "problem"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", {"content": "Once"}, "does not show the end"),
        (CHATML.replace("m.content", "m.content | upper"), {"content": "Once"}, "does not show the end"),
        (
            CHATML,
            {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            "ends with calls of tools",
        ),
    ],
)
def test_a_text_that_cannot_go_on_is_refused(template: str, last: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as caught:
        model_of(template).encode(asked(**last))
    assert caught.value.field == "continue_final_message"


@pytest.mark.parametrize(
    ("last", "start"),
    [
        ({"content": "Once P"}, ThoughtStart.NONE),
        ({"content": "<think>\nHm"}, ThoughtStart.AMID),
        ({"content": "<think>\nHm\n</think>\n"}, ThoughtStart.NONE),
        ({"content": "The tag <think> is"}, ThoughtStart.NONE),
        ({"content": "", "reasoning_content": "Hm"}, ThoughtStart.AMID),
        ({"content": " \n", "reasoning_content": "Hm"}, ThoughtStart.AMID),
        ({"content": "Once", "reasoning_content": "Hm"}, ThoughtStart.NONE),
        ({"content": ""}, ThoughtStart.POSSIBLE),
    ],
)
def test_the_begun_answer_says_where_its_thought_is(last: dict[str, Any], start: ThoughtStart) -> None:
    model, request = model_of(THINKING), asked(**last)
    assert thought_start(request, model.encode(request), model) is start


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_begun_thought_goes_on_with_its_line_feeds(content: str) -> None:
    model = model_of(THINKING)
    request = asked(content=content, reasoning_content="Hm")
    assert model.template.render(request).endswith("<think>\nHm")
    more = with_words(tokenizers.build("byte-level")).encode("\n\nso.</think>\n\nYes.").ids
    thought = model.thought(ThoughtStart.AMID)
    assert thought is not None
    taken = thought.feed(more)
    assert (taken.text, model.detokenizer(begun=True).feed(taken.answer)) == ("\n\nso.", "Yes.")
    json_answer = request.model_copy(update={"response_format": Request.model_validate(
        {"prompt": "x", "response_format": {"type": "json_object"}}).response_format})  # fmt: skip
    spec = grammar_of(json_answer, ThoughtStart.AMID, model, ())
    assert spec is not None
    assert (spec.thought_begin, spec.thought_end) == (None, model.think and model.think.end)


def test_a_text_that_goes_on_keeps_its_first_space() -> None:
    """SentencePiece's tokenizers drop it where a text begins."""
    model = model_of(CHATML, "bpe-byte-fallback")
    ids = tokenizers.build("bpe-byte-fallback").encode("the fox", add_special_tokens=False).ids
    assert model.detokenizer().feed(ids) == "the fox"
    assert model.detokenizer(begun=True).feed(ids) == " the fox"
    stopped = model.detokenizer(["fox"], begun=True)
    assert stopped.feed(ids) + stopped.flush() == " the "


def test_a_prompt_without_the_answers_head_ends_with_its_turn() -> None:
    request = Request.model_validate({"messages": [USER], "add_generation_prompt": False})
    assert model_of(CHATML).template.render(request) == "<|im_start|>user\nx<|im_end|>\n"
