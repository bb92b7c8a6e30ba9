"""A vocabulary of words that grammars can follow, and a model that counts in it. No transformers: an engine
starts soon.

Token i is " w<i>", and each byte has a token of its own. The model counts on from the last token of the row:
by one, or with a temperature by one to three as its noise says; under a grammar, on to the first token that
may come there. So each answer follows from prompt, seed and grammar (`word_answers`), and any token that is
lost, repeated or another row's, or that nobody should have accepted, shows in it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

WORDS = 999
END = WORDS  # the end-of-sequence token
VOCAB = END + 1 + 256 + 1
STRIDES = 3  # the longest, of a row with a temperature
UNREADABLE = "\x01" * 40  # a prompt at which the pattern's library panics: too many ways to read it
_END_NAME = "<end>"
_SPACE = "\u0120"  # as the alphabet of bytes spells it


@cache
def tokenizer() -> Tokenizer:
    """A BPE whose merges spell each word from the one without its last digit."""
    vocab = {f"{_SPACE}w{number}": number for number in range(WORDS)}
    merges = [(_SPACE, "w"), *((name[:-1], name[-1]) for name in vocab)]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    for name in (_END_NAME, *letters, f"{_SPACE}w"):
        vocab[name] = len(vocab)
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(\x01|\x01)*\x02|\s?\S+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([_END_NAME])
    return made


def vocabulary(ends: tuple[int, ...] = ()) -> LLTokenizer:
    """As the compiler of grammars needs it."""
    return LLTokenizer(tokenizer().to_str(), n_vocab=VOCAB, eos_token=[END, *ends])


def next_token(last: int, temperature: float, noise: float, allowed: NDArray[np.intp] | None = None) -> int:
    """`allowed`: the tokens that may come, ascending; None: any."""
    aim = last + (1 + int(noise * STRIDES) if temperature > 0 else 1)
    if allowed is None:
        return aim % WORDS
    place = int(np.searchsorted(allowed, aim))
    return int(allowed[place % len(allowed)])


def tokens_of(bits: NDArray[np.int32]) -> NDArray[np.intp]:
    """Those whose bit is set."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCAB])
