"""How often a guessed token is right, by where the guess comes from and how much text before it agrees."""

from __future__ import annotations

from enum import IntEnum
from itertools import chain, islice, repeat


class GuessSource(IntEnum):
    """Where a guess comes from; of two that agree with equally much text, the later one is taken."""

    OWN = 0  # the row's prompt and output
    PAST = 1  # outputs of rows of the same kind
    PREDICTION = 2  # the request's guess of its answer


_CLASSES = (0, 0, 0, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7)  # by tokens that agree; more are the last
_PRIOR = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85)
_PRIOR_WEIGHT = 4  # observations
_MEMORY = 200  # observations that count
_HARDLY = 0.05


class Acceptance:
    def __init__(self) -> None:
        self._rates = [list(_PRIOR) for _ in GuessSource]
        self._seen = [[_PRIOR_WEIGHT] * len(_PRIOR) for _ in GuessSource]

    def observe(self, source: GuessSource, agreeing: int, right: bool) -> None:
        """Count a guessed token, before which `agreeing` tokens agree with its source."""
        length = _CLASSES[min(agreeing, len(_CLASSES) - 1)]
        seen = self._seen[source][length] = min(self._seen[source][length] + 1, _MEMORY)
        self._rates[source][length] += (right - self._rates[source][length]) / seen

    def survival(self, source: GuessSource, agreeing: int, tokens: int) -> list[float]:
        """For each of the next `tokens` guessed tokens, the probability that all are right up to it; without
        those that have hardly any.
        """
        rates, survival, chances = self._rates[source], 1.0, []
        classes = chain(_CLASSES[agreeing:], repeat(_CLASSES[-1]))
        for length in islice(classes, tokens):
            survival *= rates[length]
            if survival < _HARDLY:
                break
            chances.append(survival)
        return chances
