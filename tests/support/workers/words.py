"""A vocabulary of words that grammars can follow, and a model that counts in it. No transformers: an engine
starts soon.

Token i is " w<i>", and each byte has a token of its own. The model counts on from the last token of the row:
by one, or with a temperature by one to three as its noise says; under a grammar, on to the first token that
may come there. What images in the prompt show decides on each of these steps, too. So each answer follows
from prompt, images, seed and grammar (`word_answers`), and any token that is lost, repeated or another row's,
or that nobody should have accepted, shows in it, as does an image that is lost, swapped or stale.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

WORDS = 999
END = WORDS  # the end-of-sequence token
MARKS = {  # of images in a prompt, by the names that their processor has for them
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
    "tile": "<row_1_col_1>", "right": "<row_1_col_2>", "below": "<row_2_col_1>", "last": "<row_2_col_2>",
}  # fmt: skip
VOCAB = END + 1 + 256 + 1 + len(MARKS)
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
    made.add_special_tokens([_END_NAME, *MARKS.values()])
    return made


def vocabulary(ends: tuple[int, ...] = ()) -> LLTokenizer:
    """As the compiler of grammars needs it."""
    return LLTokenizer(tokenizer().to_str(), n_vocab=VOCAB, eos_token=[END, *ends])


def next_token(
    last: int, temperature: float, noise: float, allowed: NDArray[np.intp] | None = None, turn: int = 0
) -> int:
    """`allowed`: the tokens that may come, ascending; None: any. `turn`: see there."""
    aim = last + 1 + ((int(noise * STRIDES) if temperature > 0 else 0) + turn) % STRIDES
    if allowed is None:
        return aim % WORDS
    place = int(np.searchsorted(allowed, aim))
    return int(allowed[place % len(allowed)])


def turn(shown: int, place: int) -> int:
    """What images, as one number that is 0 without any, add to the token that comes at a place of the
    output: two of them hardly agree for long."""
    return crc32(place.to_bytes(4, "little"), shown) % STRIDES if shown else 0


def tokens_of(bits: NDArray[np.int32]) -> NDArray[np.intp]:
    """Those whose bit is set."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCAB])
