"""Facts that are planted in text and asked for after many other tokens.

A window begins with facts, each a line of a name and a number that stands there twice, and text between
them; then comes text, and then the facts' lines again, in the same order, of which the model is to know the
numbers: it copies them, which small models can, too. A needle is found if each token of its number is the
most likely one, given those before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from ops.bench.quality.models import Logits
from torch import Tensor

A_WINDOW = 25  # needles
_BETWEEN = 12  # tokens of text behind each
ROOM = 64 * A_WINDOW  # tokens of a window beyond the distance, at most
_SYLLABLES = ("ba", "du", "fe", "go", "ki", "lo", "mi", "na", "po", "ru", "sa", "te", "vo", "wi", "zu")


@dataclass(frozen=True, slots=True)
class Haystack:
    """A window, and the places of its numbers' tokens, each the range of a needle's."""

    tokens: Tensor
    answers: Sequence[range]

    def found(self, logits: Logits) -> int:
        """How many of its needles a model finds."""
        first = self.answers[0].start - 1  # the token that predicts it
        window = self.tokens[:-1]
        guesses = logits(window, len(window) - first).argmax(-1)
        return sum(
            all(guesses[place - 1 - first] == self.tokens[place] for place in answer)
            for answer in self.answers
        )


def haystacks(tokenizer: Any, texts: Iterator[Tensor], distance: int, needles: int) -> Iterator[Haystack]:
    """Windows with so many needles in all, each `distance` tokens, or some hundred more, before where it is
    asked for. `texts` give at least `ROOM` tokens more each."""
    draw = random.Random(distance)
    for begun in range(0, needles, A_WINDOW):
        facts = [_fact(tokenizer, draw) for _ in range(min(A_WINDOW, needles - begun))]
        yield _haystack(facts, next(texts).tolist(), distance)


def _fact(tokenizer: Any, draw: random.Random) -> tuple[list[int], list[int]]:
    """Its tokens up to the number, and the number's."""
    name = "".join(draw.choice(_SYLLABLES) for _ in range(3)).capitalize()
    question = tokenizer.encode(f"\n{name}:", add_special_tokens=False)
    return question, tokenizer.encode(f" {draw.randrange(10_000, 100_000)}.", add_special_tokens=False)[:-1]


def _haystack(facts: Sequence[tuple[list[int], list[int]]], text: list[int], distance: int) -> Haystack:
    planted = list(
        chain(*((q + a) * 2 + text[_BETWEEN * n : _BETWEEN * (n + 1)] for n, (q, a) in enumerate(facts)))
    )
    lines = sum(len(question) + len(answer) for question, answer in facts)
    begun = _BETWEEN * len(facts)
    tokens = planted + text[begun : begun + max(0, distance - lines)]
    answers = []
    for question, answer in facts:
        tokens += question
        answers.append(range(len(tokens), len(tokens) + len(answer)))
        tokens += answer
    return Haystack(torch.tensor(tokens), answers)
