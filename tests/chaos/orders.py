"""What customers ask for: jobs of all kinds, each with what the counting engine must answer."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from support.engine.counting_images import shown
from support.workers import word_images
from support.workers.word_answers import Answer, Grammars, counted
from support.workers.words import STRIDES

from chaos import calls, formats
from chaos.ledger import Order
from millstream import Lane
from millstream.wire.messages.response_format import ResponseFormat
from millstream_worker.engine.protocol.request import GrammarSpec

# Words between are for poison: no text of an ordinary job passes them.
RANGES = ((0, 560), (700, 960))
LONGEST = 32  # tokens, without a grammar
TENANTS = ("", "red", "green", "blue")
FORMATTED = 0.3  # the share of jobs with a grammar
CALLING = 0.3  # of those that call tools
REPEATED = 0.5  # of those whose prompts have parts of their answer
POPULAR = 0.15  # of those that others repeat
EQUAL = 0.2  # of those that equal others
EQUALS = 9  # kinds of them
ALIKE = 0.5  # of those with images: equal ones may be about others


def draw(source: random.Random, own_id: str, images: float = 0.0) -> Order:
    """An order of mixed shape; every draw comes from `source`. `images`: the share of those
    with some.
    """
    equal = source.random() < EQUAL
    shape = random.Random(source.randrange(EQUALS)) if equal else source
    low, high = shape.choice(RANGES)
    popular = shape.random() < POPULAR
    first = low + 100 if popular else shape.randrange(low, high - STRIDES * LONGEST)
    length = LONGEST if popular else shape.choice((1, shape.randrange(2, 10), shape.randrange(10, LONGEST)))
    asked, called = _form(shape, first)
    spec = None
    if asked is not None:
        length = shape.choice((length, 2 * LONGEST))
        spec = GrammarSpec(asked.type, asked.text, asked.compact, asked.whitespace_pattern)
    if called:
        length, spec = shape.choice(calls.LENGTHS), calls.grammar(called)
    choices = shape.choice((1, 1, 1, 1, 2, 4))
    sampling = {"temperature": float(choices > 1 or shape.random() < 0.5), "seed": shape.randrange(3)}
    files, seen = _images(source, shape, images)
    answers = [
        _answer(spec, first, length, choice=choice, shown=seen, **sampling) for choice in range(choices)
    ]
    asking = called or {"prompt": _prompt(shape, first, answers)}
    fields: dict[str, Any] = {
        **(_about(shape, files, first, asking) if files else asking),
        "max_tokens": length,
        "n": choices,
        **sampling,
        "stream": source.random() < 0.5,
        "lane": source.choice((Lane.BATCH, Lane.BATCH, Lane.INTERACTIVE)),
        "tenant": shape.choice(TENANTS),
        "metadata": {"order": own_id},
    }
    if asked is not None:
        fields["response_format"] = asked
    stop = None
    if spec is None and shape.random() < 0.15 and first > 100 and length > 2:
        # Three digits: no word is the start of another.
        stop = fields["stop"] = answers[0].text.split()[shape.randrange(1, length)]
    codes = frozenset(answer.code for answer in answers) - {""}
    texts = tuple(calls.told(one.text) if called else _until(stop, one.text) for one in answers)
    return Order(own_id, fields, texts, tuple(answer.complete for answer in answers), codes)


def _form(shape: random.Random, first: int) -> tuple[ResponseFormat | None, dict[str, Any]]:
    """What the answer must fit: a format, or tools with a message that ends with its first word."""
    if shape.random() >= FORMATTED:
        return None, {}
    if shape.random() >= CALLING:
        return formats.draw(shape, first), {}
    return None, {"messages": [{"role": "user", "content": f" w{first}"}], **calls.draw(shape)}


def _images(source: random.Random, shape: random.Random, share: float) -> tuple[list[bytes], int]:
    """Image files, and as one number what the model sees of them."""
    if not share or shape.random() >= share:
        return [], 0
    chosen = shape if shape.random() < ALIKE else source
    drawn = [
        word_images.image(chosen.randrange(word_images.COUNT)) for _ in range(chosen.choice((1, 1, 1, 2)))
    ]
    return [one.file for one in drawn], shown(number for one in drawn for number in one.features)


def _about(shape: random.Random, files: list[bytes], first: int, asking: dict[str, Any]) -> dict[str, Any]:
    """The same question about images, which mostly stand before it."""
    given = dict(asking)
    texts = ["", given.pop("prompt", f" w{first}")]
    if shape.random() < 0.3:
        texts[0] = f" w{shape.randrange(560)}"
    before, behind = ([{"type": "text", "text": text}] if text else [] for text in texts)
    shown_files = [{"type": "image", "image": file} for file in files]
    return {**given, "messages": [{"role": "user", "content": [*before, *shown_files, *behind]}]}


def _answer(spec: GrammarSpec | None, first: int, length: int, **drawn: Any) -> Answer:
    return (
        counted(first, length, **drawn) if spec is None else _grammars().answer(spec, first, length, **drawn)
    )


@cache
def _grammars() -> Grammars:
    return Grammars()


def _prompt(source: random.Random, first: int, answers: list[Answer]) -> str:
    """The word to count on from; before it sometimes parts of the answers, which draft tokens come from,
    each with a word behind it that does not follow."""
    parts = []
    if source.random() < REPEATED:
        for _ in range(source.randrange(1, 4)):
            tokens = source.choice(answers).tokens
            begin = source.randrange(max(1, len(tokens) - 4))
            part = Answer(tokens[begin : begin + source.randrange(4, 20)])
            parts.append(f"{part.text} w{source.randrange(560)}")
    return f"{''.join(parts)} w{first}"


def _until(stop: str | None, text: str) -> str:
    return text if stop is None else text.partition(stop)[0]
