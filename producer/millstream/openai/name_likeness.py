"""Finds the known name that an unknown one perhaps meant, and refuses a misspelt one.

A misspelt name has the words of the right one, each much like its own: `max_token`, `maxTokens`, `temprture`.
A name with other words, or with one more, is another field, as the names of real fields are to each other.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from millstream.openai.unsupported_field import UnknownField

_LIKENESS = 0.8  # of each word
_SHORT, _LIKENESS_OF_SHORT = 5, 0.9  # letters of a name of one word: `mode` is no `model`; `stops` is `stop`
_LONGEST = 64  # characters: no field has a longer name
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")


def meant_name(name: str, known: frozenset[str]) -> str | None:
    """The one of `known` that is most like the name; None: it is like none of them."""
    return _meant(name, known) if len(name) <= _LONGEST else None


def refuse_misspelt(field: str, name: str, value: Any, known: frozenset[str]) -> None:
    """Raises UnknownField, for an unknown name that is like a known one. `field`: the name with its path."""
    if value is not None and (meant := meant_name(name, known)) is not None:
        raise UnknownField(field, value, f"no such field; did you mean {meant}?")


@lru_cache(4096)  # a file has the same name in many lines
def _meant(name: str, known: frozenset[str]) -> str | None:
    words = _words(name)
    likeness, meant = max((_likeness(words, _words(one)), one) for one in known)
    word = words[0] if len(words) == 1 else ""
    is_short = 0 < len(word) <= _SHORT and word != f"{meant}s"
    return meant if likeness >= (_LIKENESS_OF_SHORT if is_short else _LIKENESS) else None


@lru_cache(1024)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORDS.findall(name))


def _likeness(words: tuple[str, ...], others: tuple[str, ...]) -> float:
    """Returns that of the two words least alike; 1: names differ in nothing but case and joints."""
    if words and "".join(words) == "".join(others):
        return 1.0
    if len(words) != len(others):
        return 0.0
    return min(map(_alike, words, others), default=0.0)


def _alike(word: str, other: str) -> float:
    if word[0] != other[0]:  # a slip is seldom there, and `id` is no `rid`
        return 0.0
    if sorted(word) == sorted(other):  # letters have changed their places
        return 1.0
    return SequenceMatcher(None, word, other, autojunk=False).ratio()
