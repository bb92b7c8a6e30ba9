"""A worker's text: inputs through tokenizer and chat template."""

from __future__ import annotations

import copy
from functools import cache
from random import Random
from typing import Any

from support.models.tokenizers import KINDS, build
from transformers import PreTrainedTokenizerFast

from fuzz.target import Target
from fuzz.targets.codec import body
from fuzz.values import text
from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
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


TARGETS = (Target("chat-inputs", _input, _encode, (InvalidRequest, ProtocolError), share=1),)
