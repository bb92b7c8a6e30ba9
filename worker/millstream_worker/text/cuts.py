"""Places where a long text may be cut so that the ids of both sides, concatenated, are the ids of the whole.

Such a place is between a letter or digit and white space or punctuation, at a boundary of the pre-tokenizer
(each of its pieces is encoded by itself), or at one that no merge crosses. Each place is tested on the text
around it. A tokenizer whose steps look further than that is never cut.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

_PLACE = re.compile(r"(?<=[^\W_])\W")
_AROUND = 256  # characters on each side on which a place is tested
_MOST_TRIES = 64
_SPACE = "▁"  # SentencePiece's character for a space
_WORD_START = re.compile(f"(?<=[^{_SPACE}])(?={_SPACE})")
# Each looks at a few characters at a time; regular expressions are checked below.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Precompiled"}
_NORMALIZERS |= {"BertNormalizer", "Replace", "Prepend"}
_PRE_TOKENIZERS = {"ByteLevel", "Split", "Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_PRE_TOKENIZERS |= {"Punctuation", "Digits", "CharDelimiterSplit"}
_CLASS = re.compile(r"\[\^?(\\.|[^\]\\])*\]")
_FAR_SIGHTED = re.compile(r"\(\?<|\\[AbBGZz1-9]|[\^$]")  # looks behind, or for the ends of the text

Step = dict[str, Any]


def steps(part: Step | None) -> list[Step]:
    """The steps of a normalizer or pre-tokenizer of tokenizer.json, in order."""
    if part is None:
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [one for step in inner for one in steps(step)] if inner else [part]


class Cuts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        spec = json.loads(tokenizer.to_str())
        self._normalizer = tokenizer.normalizer
        self._pre_tokenizer = tokenizer.pre_tokenizer
        self._by_words = spec["model"]["type"] == "BPE" and _begins_words_only(tokenizer)
        added = list(tokenizer.get_added_tokens_decoder().values())
        names = {name for token in added for name in (token.content, self._normal(token.content))}
        self._added = sorted({name for one in names for name in (one, one.lstrip(_SPACE))} - {""})
        self._reach = max(map(len, self._added), default=0) + 1
        self._none = any(
            token.single_word or (token.rstrip and token.content[-1:].isalnum()) for token in added
        ) or not _is_near_sighted(spec)

    def last(self, text: str, begin: int, end: int) -> tuple[int, int] | None:
        """The last place in text[begin:end]: the end of the left side and the start of the right one, which
        is one further if the tokenizer puts a space in front of each text.
        """
        if self._none:
            return None
        places = [match.start() for match in _PLACE.finditer(text, begin + 1, end)]
        for place in reversed(places[-_MOST_TRIES:]):
            if _parts_words(text[place]) and not self._is_near_added(text, place):
                for start in self._starts(text, place):
                    return place, start
        return None

    def _starts(self, text: str, place: int) -> Iterator[int]:
        left, right = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
        whole = self._pieces(left + right)
        if self._pieces(left) + self._pieces(right) == whole:
            yield place
        elif right[0] == " " and self._pieces(left) + self._pieces(right[1:]) == whole:
            yield place + 1

    def _pieces(self, text: str) -> list[str]:
        """The pieces that are encoded separately."""
        pieces = [self._normal(text)]
        if self._pre_tokenizer is not None:
            pieces = [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(pieces[0])]
        return [word for piece in pieces for word in _WORD_START.split(piece)] if self._by_words else pieces

    def _normal(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))

    def _is_near_added(self, text: str, place: int) -> bool:
        """Added tokens are matched before anything else."""
        near = text[max(0, place - self._reach) : place + self._reach + 1]
        normal = self._normal(near)
        return any(name in near or name in normal for name in self._added)


def _parts_words(letter: str) -> bool:
    """White space or punctuation, and no mark that could join the letter before it."""
    return letter in " \n\r\t" or unicodedata.category(letter)[0] in "ZP"


def _begins_words_only(tokenizer: Tokenizer) -> bool:
    """Spaces occur only at the start of tokens, so that no merge crosses from one word to the next."""
    names = tokenizer.get_vocab(with_added_tokens=False)
    return _SPACE in names and not any(_WORD_START.search(name) for name in names)


def _is_near_sighted(spec: Step) -> bool:
    normalizers, splitters = steps(spec["normalizer"]), steps(spec["pre_tokenizer"])
    known = all(step["type"] in _NORMALIZERS for step in normalizers)
    known = known and all(step["type"] in _PRE_TOKENIZERS for step in splitters)
    patterns = [step["pattern"].get("Regex", "") for step in normalizers + splitters if "pattern" in step]
    return known and not any(_FAR_SIGHTED.search(_CLASS.sub("", one)) for one in patterns)
