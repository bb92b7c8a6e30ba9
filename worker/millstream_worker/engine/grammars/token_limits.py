"""Bars the tokens that a request must not have, whatever its grammar: all but `allowed_token_ids`, the ends
of `bad_words`, and all but a thought's end when its budget is spent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.protocol.request import LimitSpec, SamplingSpec

Bits = NDArray[np.int32]
_WORD = 32  # tokens


@dataclass(frozen=True, slots=True)
class Written:
    """The facts of a row's output that its limits depend on."""

    count: int = 0
    tail: tuple[int, ...] = ()  # its last tokens, as many as the longest bad word has before its end
    thought: int | None = None  # tokens of a thought that has begun, and not ended


class TokenLimits:
    """Shared by the rows of a request. Below `min_tokens` it bars their ends, as the sampler does: so a row
    that is left no token is known before it is sampled.
    """

    def __init__(self, spec: LimitSpec, sampling: SamplingSpec, vocab_size: int) -> None:
        self._spec = spec
        self._ends = frozenset(sampling.end_ids)
        self._min_tokens = sampling.min_tokens
        self._after: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)  # words, by the last but one
        for word in spec.bad_words:
            if len(word) > 1:
                self._after[word[-2]].append(word)
        self._reach = max((len(word) - 1 for word in spec.bad_words), default=0)
        self._bits = self._bits_at_any_time(vocab_size)

    def behind(self, output: Sequence[int]) -> Written:
        """Behind the whole output so far."""
        tail = tuple(output[-self._reach :]) if self._reach else ()
        return Written(len(output), tail, self._thought_of(output))

    def after(self, written: Written, token: int) -> Written:
        tail = (*written.tail, token)[-self._reach :] if self._reach else ()
        return Written(written.count + 1, tail, self._thought(written, token))

    def allows(self, written: Written, token: int) -> bool:
        """False for a token that must not come next: when a thought's end is due, each but that."""
        if (due := self._due(written)) is not None:
            return token == due
        word, place = divmod(token, _WORD)
        at_any_time = word < len(self._bits) and bool(self._bits[word] >> np.int32(place) & 1)
        return at_any_time and token not in self._barred_now(written)

    def narrow(self, bits: Bits, written: Written) -> None:
        """Clear the bits of barred tokens. An end of a thought that is due is the only token, where the bits
        allow it: a grammar may have to complete a character first.
        """
        due = self._due(written)
        words = bits.view(np.uint32)
        if due is not None and words[due // _WORD] >> np.uint32(due % _WORD) & 1:
            bits[:] = 0
            words[due // _WORD] = np.uint32(1 << due % _WORD)
            return
        bits &= self._bits
        for token in self._barred_now(written):
            if token // _WORD < len(words):
                words[token // _WORD] &= ~np.uint32(1 << token % _WORD)

    def _thought_of(self, output: Sequence[int]) -> int | None:
        begin, end = self._spec.thought_begin, self._spec.thought_end
        begun = begin is None or (bool(output) and output[0] == begin)
        if end is None or not begun or end in output:
            return None
        return len(output) - (begin is not None)

    def _thought(self, written: Written, token: int) -> int | None:
        if written.count == 0 and token == self._spec.thought_begin:
            return 0
        return None if written.thought is None or token == self._spec.thought_end else written.thought + 1

    def _due(self, written: Written) -> int | None:
        """The end of a thought whose budget is spent."""
        budget, end = self._spec.thought_budget, self._spec.thought_end
        if budget is None or end is None or written.thought is None or written.thought < budget:
            return None
        return None if end in self._ends and written.count < self._min_tokens else end

    def _barred_now(self, written: Written) -> set[int]:
        barred = set(self._ends) if written.count < self._min_tokens else set()
        for word in self._after.get(written.tail[-1], ()) if written.tail else ():
            if written.tail[1 - len(word) :] == word[:-1]:
                barred.add(word[-1])
        return barred

    def _bits_at_any_time(self, vocab_size: int) -> Bits:
        allowed = np.zeros(-(-vocab_size // _WORD) * _WORD, np.bool_)
        if self._spec.allowed is None:
            allowed[:vocab_size] = True
        else:
            listed = np.frombuffer(self._spec.allowed, np.uint8)
            known = np.unpackbits(listed, count=min(vocab_size, 8 * len(listed)), bitorder="little")
            allowed[: len(known)] = known
        barred = [word[0] for word in self._spec.bad_words if len(word) == 1 and word[0] < vocab_size]
        allowed[barred] = False
        return np.packbits(allowed, bitorder="little").view(np.int32)
