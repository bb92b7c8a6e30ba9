"""Finds where a text goes on as it did before: token ids that grow, by pairs of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH = 16  # tokens that are compared
_TRIED = 8  # earlier places of a pair: the newest ones
END = -1  # stands between two texts, and matches nothing


class TokenIndex:
    """A list of token ids; each place knows the last one before it with the same two tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}  # place of a pair's second token
        self._earlier: list[int] = []  # the place before with the same pair; -1: there is none

    def extend(self, tokens: Sequence[int]) -> None:
        latest = self._latest
        last = self.tokens[-1] if self.tokens else END
        for place, token in enumerate(tokens, start=len(self.tokens)):
            pair = (last, token)
            self._earlier.append(latest.get(pair, -1))
            latest[pair] = place
            last = token
        self.tokens += tokens

    def ends_like(self, tail: Sequence[int]) -> tuple[int, int]:
        """The longest match of a text that ends with `tail`, at least two tokens: its length, at most
        LONGEST_MATCH, and the place after it; of equal ones the newest. (0, 0): there is none.
        """
        return self._longest(tail, self._latest.get((tail[-2], tail[-1]), -1))

    def repeats(self) -> tuple[int, int]:
        """The same for its own end, at an earlier place."""
        if len(self.tokens) < 2:
            return 0, 0
        return self._longest(self.tokens[-LONGEST_MATCH:], self._earlier[-1])

    def after(self, place: int, most: int) -> list[int]:
        """Up to `most` tokens from a place on, of one text."""
        found = self.tokens[place : place + most]
        return found[: found.index(END)] if END in found else found

    def _longest(self, tail: Sequence[int], place: int) -> tuple[int, int]:
        longest, best = 0, 0
        for _ in range(_TRIED):
            if place < 0 or longest >= LONGEST_MATCH:
                break
            length = self._match(tail, place)
            if length > longest:
                longest, best = length, place + 1
            place = self._earlier[place]
        return longest, best

    def _match(self, tail: Sequence[int], place: int) -> int:
        most = min(len(tail), place + 1, LONGEST_MATCH)
        length = 2  # they share the pair
        while length < most and self.tokens[place - length] == tail[-1 - length]:
            length += 1
        return length
