"""What comes next in the rows of the batch, guessed from their own text and from past outputs. Each guess is
followed until it is wrong, whether the model verified it as draft tokens or sampled it one by one: so its
source's acceptance is known without drafting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.past_outputs import PastOutputs
from millstream_worker.engine.brain.speculation.token_index import LONGEST_MATCH, TokenIndex

MOST = 32  # tokens of a guess


@dataclass(slots=True)
class Guess:
    """`tokens` may follow the output; the `agreeing` tokens before them agree with their source."""

    source: GuessSource
    agreeing: int
    tokens: list[int]


class Drafter(Protocol):
    """Where draft tokens come from."""

    acceptance: Acceptance

    def guess(self, row: Row) -> Guess | None:
        """What may follow the row's output."""

    def learn(self, row: Row) -> None:
        """A row has ended: others may repeat its output."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A row in a slot, as far as its output has been read."""

    row: Row
    own: TokenIndex = field(default_factory=TokenIndex)
    read: int = 0  # tokens of its output
    guess: Guess | None = None


class TextGuesses:
    """`Drafter` that looks where the text has gone on before."""

    def __init__(self, max_rows: int) -> None:
        self.acceptance = Acceptance()
        self._past = PastOutputs()
        self._followed: list[_Followed | None] = [None] * max_rows

    def guess(self, row: Row) -> Guess | None:
        followed = self._follow(row)
        guess = followed.guess
        if guess is None or not guess.tokens:
            followed.guess = guess = self._new(followed)
        return guess

    def learn(self, row: Row) -> None:
        self._past.add(row)

    def _follow(self, row: Row) -> _Followed:
        assert row.slot is not None, f"row {row.handle} is not in the batch"
        followed = self._followed[row.slot]
        if followed is None or followed.row is not row:
            followed = self._followed[row.slot] = _Followed(row)
            followed.own.extend(row.origin.request.prompt)
        fresh = row.output[followed.read :]
        if fresh:
            followed.own.extend(fresh)
            followed.read += len(fresh)
            if followed.guess is not None:
                followed.guess = self._advance(followed.guess, fresh)
        return followed

    def _advance(self, guess: Guess, fresh: list[int]) -> Guess | None:
        """The rest of a guess after these tokens of output; None if it was wrong."""
        for token, expected in zip(fresh, guess.tokens, strict=False):
            self.acceptance.observe(guess.source, guess.agreeing, token == expected)
            if token != expected:
                return None
            guess.agreeing += 1
        guess.tokens = guess.tokens[len(fresh) :]
        return guess

    def _new(self, followed: _Followed) -> Guess | None:
        own, past = followed.own, self._past.of(followed.row)
        if len(own.tokens) < 2:
            return None
        found = [(own.repeats(), GuessSource.OWN, own)]
        if past is not None:
            found.append((past.ends_like(own.tokens[-LONGEST_MATCH:]), GuessSource.PAST, past))
        (agreeing, place), source, index = max(found, key=lambda one: (one[0][0], one[1]))
        tokens = index.after(place, MOST) if agreeing else []
        return Guess(source, agreeing, tokens) if tokens else None
