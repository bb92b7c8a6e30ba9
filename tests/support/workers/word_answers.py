"""What rows of the model that counts in words (`words`) must come to: each of them alone, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from millstream_worker.engine.brain.batch.noise import row_key, uniform
from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec
from millstream_worker.text.model import TextModel
from support.workers.words import END, MARKS, VOCAB, next_token, tokenizer, tokens_of, turn, vocabulary

TEMPLATE = (  # what is said, behind the names of tools, with calls in Hermes' form
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content or [] %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in m.tool_calls or [] %}"
    "{{ '' if loop.first else '\n' }}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}"
)


def write_words(folder: Path) -> Path:
    """The tokenizer, for workers."""
    _fast().save_pretrained(str(folder))
    return folder


@cache
def text_model() -> TextModel:
    """As a worker has it."""
    return TextModel(_fast(), VOCAB)


def _fast() -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), extra_special_tokens=MARKS)
    fast.chat_template = TEMPLATE
    return fast


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one choice. `complete` as in a result; `code`: of the error with which it ends instead."""

    tokens: tuple[int, ...]
    complete: bool | None = None
    code: str = ""

    @property
    def text(self) -> str:
        return tokenizer().decode(self.tokens)


def counted(
    last: int, count: int, *, temperature: float = 0.0, seed: int = 0, choice: int = 0, shown: int = 0
) -> Answer:
    """What a row without a grammar must come to, after a prompt that ends with the word `last`. `shown`: the
    images in it as one number."""
    tokens: list[int] = []
    for place, noise in enumerate(_noise(seed, choice, count)):
        last = next_token(last, temperature, noise, turn=turn(shown, place))
        tokens.append(last)
    return Answer(tuple(tokens))


class Grammars:
    """Keeps those that were asked for last."""

    def __init__(self) -> None:
        self._compiler = GrammarCompiler(vocabulary, GrammarTrial().check)

    def answer(
        self,
        spec: GrammarSpec,
        last: int,
        count: int,
        *,
        temperature: float,
        seed: int,
        choice: int,
        shown: int = 0,
    ) -> Answer:
        try:
            matcher = self._compiler.matchers(EngineRequest(1, (last,), count, grammar=spec))[0]
        except InvalidGrammar:
            return Answer((), code="bad_request")
        tokens: list[int] = []
        for place, noise in enumerate(_noise(seed, choice, count)):
            bits = np.zeros(-(-VOCAB // 32), np.int32)
            matcher.fill(bits, bits.ctypes.data)
            if matcher.failure is not None:
                return Answer(tuple(tokens), code=matcher.failure)
            last = next_token(last, temperature, noise, tokens_of(bits), turn(shown, place))
            if last == END:
                return Answer(tuple(tokens), complete=True)
            matcher.consume([last])
            tokens.append(last)
            if matcher.complete:
                return Answer(tuple(tokens), complete=True)
        return Answer(tuple(tokens), complete=False)


def _noise(seed: int, choice: int, count: int) -> Sequence[float]:
    noise: list[float] = uniform(
        np.full(count, row_key(seed, choice), np.uint64), np.arange(count, dtype=np.int32)
    ).tolist()
    return noise
