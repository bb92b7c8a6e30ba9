"""Follows one row's output through its grammar: the tokens that may come next, and the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from millstream_worker.engine.grammars.partial.partial_calls import PartialCalls

Bits = NDArray[np.int32]


class Matcher:
    """A row's place in its grammar. It has followed the row's whole output, and nothing else.

    `partial`: the calls in it are to be checked at the end; `output` is kept for that.
    """

    def __init__(
        self, matcher: LLMatcher, partial: PartialCalls | None = None, output: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self.partial = partial
        self.output = list(output)
        self._forced: list[int] | None = None  # None: not asked for since the last token
        self._stuck = False

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self.partial, self.output)

    def consume(self, tokens: Sequence[int]) -> bool:
        """Follow more of the output. False if the grammar does not accept it: the row is stuck then."""
        self._forced = None
        if self.partial is not None:
            self.output += tokens
        self._stuck = self._matcher.try_consume_tokens(list(tokens)) < len(tokens)
        return not self._stuck

    def valid(self, tokens: Sequence[int]) -> int:
        """The number of these tokens, from the first on, that the grammar accepts."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def forced(self) -> list[int]:
        """The tokens that come next, as far as the grammar leaves no choice."""
        if self._forced is None:
            over = self._stuck or self._matcher.is_stopped()
            self._forced = [] if over else self._matcher.compute_ff_tokens()
        return self._forced

    def fill(self, bits: Bits, address: int) -> None:
        """Set the bit of each token that may come next, in `bits` [words], token 0 lowest, which lie at
        `address`. A forced token is the only one: other ways to cut the same text into tokens would be other
        outputs. All bits are set where `failure` says why none can be.
        """
        forced = self.forced()
        if forced:
            bits[:] = 0
            bits.view(np.uint32)[forced[0] // 32] = np.uint32(1 << forced[0] % 32)
            return
        self._matcher.unsafe_compute_mask_ptr(address, bits.nbytes)
        self._stuck = self._stuck or not bits.any()
        if self.failure is not None:
            bits[:] = -1

    @property
    def failure(self) -> str | None:
        """The reason why the row cannot go on, as in a Step."""
        if self._matcher.is_error():
            return "grammar_limit"
        return "grammar_stuck" if self._stuck else None

    @property
    def complete(self) -> bool:
        """No token may follow: the output is a whole sentence of the grammar."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())
