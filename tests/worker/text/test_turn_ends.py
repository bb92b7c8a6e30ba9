"""A chat's answer ends where its turn ends: by the tokenizer's end, and by what the template writes there."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.models import tokenizers
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from millstream_worker.text.model import TextModel

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|eot|>", "<|user|>", "<think>", "</think>")
LOOP = "{% for m in messages %}"
BEGIN = "{% endfor %}{% if add_generation_prompt %}"
CHATML = LOOP + "<|start|>{{ m.role }}\n{{ m.content }}<|eot|>\n" + BEGIN + "<|start|>assistant\n{% endif %}"
TEMPLATES = {
    "behind the text": (CHATML, ["<|eot|>"]),
    "behind white space": (LOOP + "[{{ m.content }}] <|eot|>" + BEGIN + "{% endif %}", []),
    "spaced": (LOOP + "{{ m.content }} \n <|eot|>" + BEGIN + "{% endif %}", ["<|eot|>"]),
    "the next turn's begin": (
        LOOP + "<|{{ m.role }}|>\n{{ m.content }}" + BEGIN + "<|assistant|>{% endif %}",
        ["<|user|>"],
    ),
    "without a generation prompt": (CHATML.replace(" if add", " if not add"), ["<|eot|>"]),
    "an empty thought before it": (
        CHATML.replace(
            "{{ m.content", "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content"
        ),
        ["<|eot|>"],
    ),
    "several parts": (  # as gpt-oss's: <|eot|> ends the thought, too
        LOOP + "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
        "<|message|>{{ m.content }}<|eot|>" + BEGIN + "<|start|>assistant{% endif %}",
        [],
    ),
    "words": (LOOP + "{{ m.role }}: {{ m.content }}\n" + BEGIN + "assistant: {% endif %}", []),
    "none that takes two questions": (
        LOOP + "{{ raise_exception('no') if loop.index > 1 }}" + BEGIN + "{% endif %}",
        [],
    ),
}


def model(folder: Path, template: str, *, vocab_size: int = 0, end: str = "<end>") -> TextModel:
    tokenizer = Tokenizer.from_str(tokenizers.build("byte-level").to_str())
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end or None, chat_template=template)
    fast.save_pretrained(folder)
    return TextModel.load(folder, vocab_size or tokenizer.get_vocab_size())


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_token_that_a_template_writes_ends_a_turn(name: str, tmp_path: Path) -> None:
    template, ends = TEMPLATES[name]
    made = model(tmp_path, template, end="")
    assert [made.detokenizer().token_bytes.shown(token)[0] for token in made.turn_ends] == ends


def test_the_end_of_the_tokenizer_ends_a_turn(tmp_path: Path) -> None:
    made = model(tmp_path, CHATML)
    found = [made.detokenizer().token_bytes.shown(token)[0] for token in made.turn_ends]
    assert found == ["<end>", "<|eot|>"]
    assert model(tmp_path, CHATML, end="<|eot|>").turn_ends == made.turn_ends[1:]


def test_ends_beyond_the_vocabulary_are_passed_over(tmp_path: Path) -> None:
    end, turn = model(tmp_path, CHATML).turn_ends
    with capture_logs() as told:
        assert model(tmp_path, CHATML, vocab_size=turn).turn_ends == (end,)
    assert [(line["token"], line["source"]) for line in told] == [(turn, "chat template")]
