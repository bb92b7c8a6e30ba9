"""Guesses the next tokens of the rows in the batch, from their requests' predictions, from past outputs and
from their own text. Each guess is followed until it is wrong, whether the model verified it as draft tokens
or sampled it one by one: so its source's acceptance is known without drafting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.past_outputs import PastOutputs
from millstream_worker.engine.brain.speculation.token_index import LONGEST_MATCH, TokenIndex

MOST = 32  # tokens of a guess
_AHEAD = 4096  # tokens of a prediction beyond the length of the output that are indexed


@dataclass(slots=True)
class Guess:
    """`tokens` may follow the output; the `agreeing` tokens before them agree with their source."""

    source: GuessSource
    agreeing: int
    tokens: list[int]


class Drafter(Protocol):
    """A source of draft tokens. It learns from rows that have ended."""

    acceptance: Acceptance

    def guess(self, row: Row) -> Guess | None:
        """Returns tokens that may follow the row's output; None without a guess."""

    def learn(self, row: Row) -> None:
        """Learns from a row that has ended: others may repeat its output."""


@dataclass(slots=True, eq=False)
class _Trail:
    """A row's text goes on as `index` does from `place` on."""

    source: GuessSource
    agreeing: int
    index: TokenIndex
    place: int


@dataclass(slots=True, eq=False)
class _Followed:
    """A row in a slot, as far as its output has been read."""

    row: Row
    own: TokenIndex
    prediction: TokenIndex | None
    read: int = 0  # tokens of its output
    trail: _Trail | None = None

    def read_prediction(self) -> None:
        """Indexes the prediction as far as the output may be in it: the rest takes time, and may be wrong."""
        request = self.row.origin.request
        if self.prediction is not None:
            read = len(self.prediction.tokens) - len(request.prompt[-LONGEST_MATCH:])
            self.prediction.extend(request.prediction[read : len(self.row.output) + _AHEAD])


class TextGuesses:
    """A `Drafter` that looks up how the same text has gone on before."""

    def __init__(self, max_rows: int) -> None:
        self.acceptance = Acceptance()
        self._past = PastOutputs()
        self._followed: list[_Followed | None] = [None] * max_rows

    def guess(self, row: Row) -> Guess | None:
        followed = self._follow(row)
        return _guess(followed.trail) or _guess(self._find(followed))

    def learn(self, row: Row) -> None:
        self._past.add(row)

    def _follow(self, row: Row) -> _Followed:
        assert row.slot is not None, f"row {row.handle} is not in the batch"
        followed = self._followed[row.slot]
        if followed is None or followed.row is not row:
            followed = self._followed[row.slot] = _begin(row)
        followed.read_prediction()
        fresh = row.output[followed.read :]
        if fresh:
            followed.own.extend(fresh)
            followed.read += len(fresh)
            if followed.trail is not None:
                followed.trail = self._advance(followed.trail, fresh)
        return followed

    def _advance(self, trail: _Trail, fresh: list[int]) -> _Trail | None:
        """Returns the trail after these tokens of output; None if it was wrong, or is at its end."""
        expected = trail.index.after(trail.place, len(fresh))
        for token, guessed in zip(fresh, expected, strict=False):
            self.acceptance.observe(trail.source, trail.agreeing, token == guessed)
            if token != guessed:
                return None
            trail.agreeing += 1
        trail.place += len(fresh)
        return trail if len(expected) == len(fresh) else None

    def _find(self, followed: _Followed) -> _Trail | None:
        own = followed.own
        if len(own.tokens) < 2:
            return None
        found = [(own.repeats(), GuessSource.OWN, own)]
        others = (
            (GuessSource.PAST, self._past.of(followed.row)),
            (GuessSource.PREDICTION, followed.prediction),
        )
        tail = own.tokens[-LONGEST_MATCH:]
        found += [(index.ends_like(tail), source, index) for source, index in others if index is not None]
        (agreeing, place), source, index = max(found, key=lambda one: (one[0][0], one[1]))
        followed.trail = _Trail(source, agreeing, index, place) if agreeing else None
        return followed.trail


def _begin(row: Row) -> _Followed:
    request = row.origin.request
    own, prediction = TokenIndex(), None
    own.extend(request.prompt)
    if request.prediction:
        prediction = TokenIndex()
        prediction.extend(request.prompt[-LONGEST_MATCH:])  # so that it is found by its beginning
    return _Followed(row, own, prediction)


def _guess(trail: _Trail | None) -> Guess | None:
    tokens = trail.index.after(trail.place, MOST) if trail is not None else []
    return Guess(trail.source, trail.agreeing, tokens) if trail is not None and tokens else None
