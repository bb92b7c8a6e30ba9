"""A row's limits against their plain meaning, read from its whole output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_worker.engine.grammars.limited_matcher import LimitedMatcher
from millstream_worker.engine.grammars.token_limits import TokenLimits, Written
from millstream_worker.engine.protocol.request import LimitSpec, SamplingSpec, token_bits

VOCAB = 40
BEGIN, END = 30, 31
tokens = st.integers(0, 5)


def ids_of(bits: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")).tolist())


def plainly_allowed(spec: LimitSpec, sampling: SamplingSpec, output: Sequence[int]) -> set[int]:
    """What may come after this output."""
    early = len(output) < sampling.min_tokens
    thought = list(output)
    if spec.thought_begin is not None:
        thought = thought[1:] if thought[:1] == [spec.thought_begin] else [END]
    open_still = spec.thought_end is not None and END not in thought
    spent = spec.thought_budget is not None and len(thought) >= spec.thought_budget
    if open_still and spent and not (early and END in sampling.end_ids):
        return {END}
    allowed = set(range(VOCAB)) if spec.allowed is None else ids_of(spec.allowed)
    for word in spec.bad_words:
        if tuple(output)[len(output) - len(word) + 1 :] == word[:-1]:
            allowed.discard(word[-1])
    return allowed - set(sampling.end_ids) if early else allowed


def filled(matcher: LimitedMatcher) -> set[int]:
    bits = np.empty(-(-VOCAB // 32), np.int32)
    matcher.fill(bits, bits.ctypes.data)
    return ids_of(bits.tobytes())


@given(
    allowed=st.none() | st.sets(st.integers(0, 7), min_size=1),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=4),
    thought=st.sampled_from([(None, None, None), (2, None, END), (0, BEGIN, END), (3, BEGIN, END)]),
    ends=st.sampled_from([(), (3,), (3, END)]),
    min_tokens=st.integers(0, 5),
    output=st.lists(tokens | st.sampled_from([BEGIN, END]), max_size=9),
    cut=st.integers(0, 9),
)
def test_a_mask_has_what_the_whole_output_allows(
    allowed: set[int] | None,
    bad_words: list[tuple[int, ...]],
    thought: tuple[int | None, int | None, int | None],
    ends: tuple[int, ...],
    min_tokens: int,
    output: list[int],
    cut: int,
) -> None:
    """After each token; also of a row that was resumed in between, and for the draft tokens after it."""
    spec = LimitSpec(allowed and token_bits(allowed, VOCAB), tuple(bad_words), *thought)
    sampling = SamplingSpec(end_ids=ends, min_tokens=min_tokens)
    limits = TokenLimits(spec, sampling, VOCAB)
    matcher = LimitedMatcher(limits, None, output[:cut])
    for place in range(min(cut, len(output)), len(output) + 1):
        expected = plainly_allowed(spec, sampling, output[:place])
        assert filled(matcher) == (expected or set(range(64))), place
        assert matcher.failure == (None if expected else "limits_stuck")
        drafted = [output[end] in plainly_allowed(spec, sampling, output[:end]) for end in
                   range(place, len(output))]  # fmt: skip
        assert matcher.valid(output[place:]) == [*drafted, False].index(False)
        ahead = matcher.copy()
        assert ahead.consume(output[place:])
        assert matcher.consume(output[place : place + 1])
    assert (matcher.forced(), matcher.complete) == ([], False)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 40])
def test_ids_beyond_the_vocabulary_bar_nothing(size: int) -> None:
    limits = TokenLimits(LimitSpec(token_bits((0, 99), 100), ((99,), (0, 98))), SamplingSpec(), size)
    bits = np.empty(-(-size // 32), np.int32)
    matcher = LimitedMatcher(limits, None, [0])
    matcher.fill(bits, bits.ctypes.data)
    assert bits.tolist() == [1, 0][: len(bits)]


def test_a_resumed_row_does_not_follow_each_token() -> None:
    """An engine resumes rows of a million tokens while others wait."""

    class Unfollowed(TokenLimits):
        def after(self, written: Written, token: int) -> Written:
            raise AssertionError("it follows the output again")

    limits = Unfollowed(LimitSpec(None, ((1, 2, 3),), 2, BEGIN, END), SamplingSpec(), VOCAB)
    assert limits.behind([BEGIN, 4, 1, 2]) == Written(4, (1, 2), 3)
    assert filled(LimitedMatcher(limits, None, [BEGIN, *[4] * 9])) == {END}
    assert filled(LimitedMatcher(limits, None, [BEGIN, END, *[4] * 9, 1, 2])) == set(range(VOCAB)) - {3}
