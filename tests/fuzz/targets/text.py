"""A worker's text: inputs through tokenizer and chat template, any token ids back into text."""

from __future__ import annotations

import copy
from functools import cache
from random import Random
from typing import Any

from support.models.tokenizers import KINDS, build
from transformers import PreTrainedTokenizerFast

from fuzz.target import Target
from fuzz.targets.codec import body
from fuzz.values import some, text
from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.model import TextModel

TEMPLATES = {
    "none": None,
    "plain": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n",
    "strict": "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    "wrong": "{{ messages[0].content.nothing.more }}{{ messages[7].role }}",
    "counting": "{{ 100 // (messages | length - 2) }}{{ messages[0].content | int }}{{ messages[-1].role }}",
    "broken": "{% for m in messages %}{{ m.content }}",
    "costly": "{% for m in messages %}{{ m.content[:50] * 20 }}{% endfor %}{{ messages | tojson }}",
}


@cache
def _model(kind: str, template: str) -> TextModel:
    fast = PreTrainedTokenizerFast(tokenizer_object=copy.deepcopy(build(kind)))
    fast.chat_template = TEMPLATES[template]
    return TextModel(fast)


def _input(chance: Random) -> tuple[str, str, bytes]:
    kind = chance.choice(KINDS)
    data = body(chance, lambda c: {"messages": _messages(c)} if c.random() < 0.7 else {"prompt": text(c)})
    return kind, chance.choice(list(TEMPLATES)), data


def _messages(chance: Random) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "system", "tool", text(chance))
    return [{"role": chance.choice(roles), "content": text(chance)} for _ in range(chance.randrange(1, 4))]


def _encode(case: tuple[str, str, bytes]) -> None:
    kind, template, data = case
    model = _model(kind, template)
    ids = model.encode(codec.decode(Request, data))
    assert ids
    assert all(0 <= one < model.vocab_size for one in ids)


# --- token ids into text

Case = tuple[str, list[list[int]], list[str], int]  # tokenizer, ids as they come, stop strings, min_tokens


def _ids(chance: Random) -> Case:
    kind = chance.choice(KINDS)
    cuts = [[_id(chance) for _ in range(chance.randrange(8))] for _ in range(chance.randrange(5))]
    said = _model(kind, "none").detokenizer().feed([one for ids in cuts for one in ids])
    stops = some(chance, lambda c: _stop(c, said), 3)
    return kind, cuts, stops, chance.choice((0, 0, 0, 1, 5, 100))


def _stop(chance: Random, said: str) -> str:
    """Mostly one that comes."""
    start = chance.randrange(len(said) + 1)
    found = said[start : start + chance.randrange(1, 12)]
    return found or chance.choice(("a", " the", "\ufffd", "é", "x" * 256))


def _id(chance: Random) -> int:
    return chance.randrange(450) if chance.random() < 0.97 else chance.choice((0, 1, 999, 10**6, 2**31 - 1))


def _detokenize(case: Case) -> None:
    """The same text however the ids were cut, in UTF-8, and resumed behind any part of it."""
    kind, cuts, stops, least = case
    model = _model(kind, "none")
    whole = [one for ids in cuts for one in ids]
    cut, at_once = model.detokenizer(stops, least), model.detokenizer(stops, least)
    parts = [cut.feed(ids) for ids in cuts]
    said = "".join(parts) + cut.flush()
    said.encode()
    assert said == at_once.feed(whole) + at_once.flush(), "the cuts change the text"
    assert cut.kept_tokens == at_once.kept_tokens <= len(whole)
    assert cut.stopped == at_once.stopped
    _resume(model.detokenizer(stops, least), cuts, parts, said)
    for one in whole:
        model.detokenizer().token_bytes.shown(one)[0].encode()


def _resume(later: Detokenizer, cuts: list[list[int]], parts: list[str], said: str) -> None:
    half = len(cuts) // 2
    told = "".join(parts[:half])
    first = later.resume([one for ids in cuts[:half] for one in ids], len(told))
    rest = first + "".join(later.feed(ids) for ids in cuts[half:]) + later.flush()
    assert told + rest == said, "an attempt that goes on says something else"


TARGETS = (
    Target("chat-inputs", _input, _encode, (InvalidRequest, ProtocolError), share=1),
    Target("token-ids", _ids, _detokenize, (), share=1.5),
)
