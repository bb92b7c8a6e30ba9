"""A tokenizer folder as the worker's front uses it: encoding of every kind of input, and clear refusals."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.models.tokenizers import build
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from millstream.errors import InvalidRequest
from millstream.wire.messages.messages import ChatMessage, Request
from millstream.wire.messages.template import RESERVED
from millstream_worker.text import TextModel, TokenizerUnusable

DAMAGED = '{"version": "1.0", "added_tokens": [], "model": {"type": "Nope"}}'
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    "<begin>{{ m.role }}: {{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<begin>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thinking{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build("byte-level"), eos_token="<end>", bos_token="<begin>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def plain_folder(tmp_path: Path) -> Path:
    PreTrainedTokenizerFast(tokenizer_object=build("byte-level"), eos_token="<end>").save_pretrained(tmp_path)
    return tmp_path


def chat(*turns: tuple[str, str]) -> Request:
    return Request(messages=tuple(ChatMessage(role=role, content=text) for role, text in turns))


def test_a_prompt_comes_back_as_it_was(folder: Path) -> None:
    model = TextModel.load(folder)
    ids = model.encode(Request(prompt="the quick 🙂 fox"))
    detokenizer = model.detokenizer()
    assert detokenizer.feed(ids) + detokenizer.flush() == "the quick 🙂 fox"


def test_messages_go_through_the_template_up_to_the_answer(folder: Path) -> None:
    model = TextModel.load(folder)
    ids = model.encode(chat(("system", "be brief"), ("user", "the fox?")))
    names = [model.token_text(i) for i in ids]
    assert "".join(names) == "<begin>system: be brief<end><begin>user: the fox?<end><begin>"
    assert names[0] == "<begin>", "special tokens of the template are single tokens"


def test_a_request_s_values_reach_the_template(folder: Path) -> None:
    model = TextModel.load(folder)
    plain = chat(("user", "the fox?"))
    asked = plain.model_copy(update={"chat_template_kwargs": {"enable_thinking": False, "unknown": [1]}})
    added = model.encode(asked)[len(model.encode(plain)) :]
    assert "".join(model.token_text(one) for one in added) == "no thinking"


def test_what_the_renderer_takes_itself_is_reserved() -> None:
    for function in (PreTrainedTokenizerFast.apply_chat_template, render_jinja_template):
        taken = {
            name
            for name, one in inspect.signature(function).parameters.items()
            if one.kind != one.VAR_KEYWORD
        }
        assert taken <= RESERVED


def test_special_tokens_of_the_tokenizer_are_added_to_prompts_only(folder: Path) -> None:
    model = TextModel.load(folder)
    with_text = build("byte-level").encode("the").ids
    assert model.encode(Request(prompt="the")) == with_text
    assert model.encode(Request(token_ids=tuple(with_text))) == with_text


def test_a_model_without_a_template_refuses_messages(plain_folder: Path) -> None:
    model = TextModel.load(plain_folder)
    assert not model.has_chat_template
    with pytest.raises(
        InvalidRequest, match=r"^messages: this model has no chat template; send a prompt .*--raw"
    ):
        model.encode(chat(("user", "hi")))


def test_the_template_s_own_complaint_reaches_the_sender(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^messages: .*refuses these messages: no critics"):
        TextModel.load(folder).encode(chat(("critic", "42")))


def test_token_ids_beyond_the_vocabulary_are_refused(folder: Path) -> None:
    model = TextModel.load(folder, vocab_size=100)
    assert model.encode(Request(token_ids=(0, 99))) == [0, 99]
    with pytest.raises(InvalidRequest, match=r"^token_ids: .*vocabulary of 100.*\(got 100\)"):
        model.encode(Request(token_ids=(5, 100)))


def test_a_tokenizer_larger_than_the_model_cannot_harm_it(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt: .*beyond the model's vocabulary"):
        TextModel.load(folder, vocab_size=5).encode(Request(prompt="the quick fox"))


def test_input_without_any_token_is_refused(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=build("wordpiece")).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match=r"^prompt: gives no tokens at all"):
        TextModel.load(tmp_path).encode(Request(prompt=" \n "))


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnusable, match=str(tmp_path)):
        TextModel.load(tmp_path)


def test_a_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(DAMAGED)
    with pytest.raises(TokenizerUnusable, match=f"{folder}: data did not match"):
        TextModel.load(folder)


def test_many_threads_may_encode_at_once(folder: Path) -> None:
    model = TextModel.load(folder)
    prompts = [f"the quick fox number {i} " * 20 for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: model.encode(Request(prompt=text)), prompts))
    assert together == [model.encode(Request(prompt=text)) for text in prompts]
