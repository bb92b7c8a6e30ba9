"""Follows one row's output through the limits of its tokens, and through its grammar if it has one."""

from __future__ import annotations

from collections.abc import Sequence

from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.token_limits import Bits, TokenLimits


class LimitedMatcher:
    """A `Matcher` of a row with limits: a token may come next if both allow it. `output`: the row's so far,
    which its `grammar` has followed already.
    """

    def __init__(self, limits: TokenLimits, grammar: Matcher | None, output: Sequence[int] = ()) -> None:
        self._limits = limits
        self._grammar = grammar
        self._stuck = False
        self._written = limits.behind(output)

    def copy(self) -> LimitedMatcher:
        other = LimitedMatcher(self._limits, self._grammar and self._grammar.copy())
        other._written = self._written
        return other

    def consume(self, tokens: Sequence[int]) -> bool:
        """Follow more of the output. False if the grammar does not accept it."""
        for token in tokens:
            self._written = self._limits.after(self._written, token)
        return self._grammar is None or self._grammar.consume(tokens)

    def valid(self, tokens: Sequence[int]) -> int:
        """The number of these tokens, from the first on, that may come next."""
        count = len(tokens) if self._grammar is None else self._grammar.valid(tokens)
        written = self._written
        for place, token in enumerate(tokens[:count]):
            if not self._limits.allows(written, token):
                return place
            written = self._limits.after(written, token)
        return count

    def forced(self) -> list[int]:
        """The tokens that come next, as far as the grammar leaves no choice, and the limits allow them."""
        forced = [] if self._grammar is None else self._grammar.forced()
        return forced[: self.valid(forced)] if forced else forced

    def fill(self, bits: Bits, address: int) -> None:
        """As a Matcher does: a forced token that is barred leaves none."""
        if self._grammar is None:
            bits[:] = -1
        else:
            self._grammar.fill(bits, address)
        self._limits.narrow(bits, self._written)
        self._stuck = not bits.any()
        if self.failure is not None:
            bits[:] = -1

    @property
    def failure(self) -> str | None:
        """The reason why the row cannot go on, as in a Step."""
        stuck = "limits_stuck" if self._grammar is None else "grammar_stuck"
        return (self._grammar and self._grammar.failure) or (stuck if self._stuck else None)

    @property
    def complete(self) -> bool:
        """No token may follow by the grammar."""
        return self._grammar is not None and self._grammar.complete


RowMatcher = Matcher | LimitedMatcher
