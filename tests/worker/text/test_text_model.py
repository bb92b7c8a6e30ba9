"""A tokenizer folder as the worker's front uses it: encoding of every kind of input, and clear refusals."""

from __future__ import annotations

import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.models.tokenizers import build
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream.wire.messages.template import RESERVED
from millstream_worker.text.model import TextModel, TokenizerUnusable

DAMAGED = '{"version": "1.0", "added_tokens": [], "model": {"type": "Nope"}}'
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    "<begin>{{ m.role }}: {{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<begin>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thinking{% endif %}"
)


def written(folder: Path, kind: str = "byte-level", **more: str) -> Path:
    PreTrainedTokenizerFast(tokenizer_object=build(kind), eos_token="<end>", **more).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, bos_token="<begin>", chat_template=TEMPLATE)


@pytest.fixture
def model(folder: Path) -> TextModel:
    return TextModel.load(folder)


def chat(*turns: tuple[str, str]) -> Request:
    return Request(messages=tuple(ChatMessage(role=role, content=text) for role, text in turns))


def shown(model: TextModel, token: int) -> str:
    return model.detokenizer().token_bytes.shown(token)[0]


def test_a_prompt_comes_back_as_it_was(model: TextModel) -> None:
    """Special tokens are added to prompts only."""
    ids = model.encode(Request(prompt="the quick 🙂 fox"))
    detokenizer = model.detokenizer()
    assert detokenizer.feed(ids) + detokenizer.flush() == "the quick 🙂 fox"
    with_text = build("byte-level").encode("the").ids
    assert model.encode(Request(prompt="the")) == with_text
    assert model.encode(Request(token_ids=tuple(with_text))) == with_text


def test_the_template_of_an_earlier_processor_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path, bos_token="<begin>")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    text = TextModel.load(folder).template.render(chat(("user", "hello")))
    assert text == "<begin>user: hello<end><begin>"
    (folder / "chat_template.json").write_text("[]")
    with pytest.raises(TokenizerUnusable, match=r"chat_template\.json has no text under chat_template"):
        TextModel.load(folder)


def test_messages_go_through_the_template_up_to_the_answer(model: TextModel) -> None:
    names = [shown(model, i) for i in model.encode(chat(("system", "be brief"), ("user", "the fox?")))]
    assert "".join(names) == "<begin>system: be brief<end><begin>user: the fox?<end><begin>"
    assert names[0] == "<begin>", "special tokens of the template are single tokens"
    plain = chat(("user", "the fox?"))
    asked = plain.model_copy(update={"chat_template_kwargs": {"enable_thinking": False, "unknown": [1]}})
    added = model.encode(asked)[len(model.encode(plain)) :]
    assert "".join(shown(model, one) for one in added) == "no thinking"


def test_what_the_renderer_takes_itself_is_reserved() -> None:
    for function in (PreTrainedTokenizerFast.apply_chat_template, render_jinja_template):
        taken = {
            name
            for name, one in inspect.signature(function).parameters.items()
            if one.kind != one.VAR_KEYWORD
        }
        assert taken <= RESERVED


def test_what_cannot_be_encoded_is_refused_by_its_field(folder: Path, tmp_path: Path) -> None:
    small = TextModel.load(folder, vocab_size=100)
    assert small.encode(Request(token_ids=(0, 99))) == [0, 99]
    plain = TextModel.load(written(tmp_path / "plain"))
    lacking = TextModel.load(written(tmp_path / "lacking", "wordpiece"))
    for model, request, says in (
        (plain, chat(("user", "hi")), r"messages: this model has no chat template; send a prompt .*--raw"),
        (small, chat(("critic", "42")), r"messages: .*refuses these messages: no critics"),
        (small, Request(token_ids=(5, 100)), r"token_ids: .*vocabulary of 100.*\(got 100\)"),
        # a tokenizer larger than the model cannot harm it
        (
            TextModel.load(folder, vocab_size=5),
            Request(prompt="the fox"),
            r"prompt: .*the model's vocabulary",
        ),
        (lacking, Request(prompt=" \n "), r"prompt: gives no tokens at all"),
    ):
        with pytest.raises(InvalidRequest, match=f"^{says}"):
            model.encode(request)


def test_a_folder_with_no_or_a_damaged_tokenizer_is_named(folder: Path) -> None:
    with pytest.raises(TokenizerUnusable, match=str(folder / "no")):
        TextModel.load(folder / "no")
    (folder / "tokenizer.json").write_text(DAMAGED)
    with pytest.raises(TokenizerUnusable, match=f"{folder}: data did not match"):
        TextModel.load(folder)


def test_many_threads_may_encode_at_once(model: TextModel) -> None:
    prompts = [f"the quick fox number {i} " * 20 for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: model.encode(Request(prompt=text)), prompts))
    assert together == [model.encode(Request(prompt=text)) for text in prompts]


@pytest.mark.parametrize("kind", ["byte-level", "bpe-byte-fallback"])
def test_bad_words_are_those_behind_a_space_too(kind: str) -> None:
    model = TextModel(PreTrainedTokenizerFast(tokenizer_object=build(kind)))
    written = model.bad_words(["fox", "  fox", "a", "<end>"])
    assert len(written) == len(set(written))
    for text in ("fox", " fox", "a", " a", "<end>"):
        assert tuple(build(kind).encode(text, add_special_tokens=False).ids) in written
    assert model.bad_words([]) == ()
