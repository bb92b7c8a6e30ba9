"""A pattern of all texts but some: the compiler's patterns cannot exclude anything."""

from __future__ import annotations

from collections.abc import Sequence

from millstream_worker.engine.grammars.schemas.rewriting.scope import Unknown

MOST_CHARS = 2000  # of all texts together
_ANY = "(?s:.*)"


def pattern_without(texts: Sequence[str]) -> str:
    """Returns the pattern of all other texts. Raises Unknown if these are too long."""
    if sum(map(len, texts)) > MOST_CHARS:
        raise Unknown
    return f"^(?:{_others(sorted(set(texts)))})$"


def _others(texts: Sequence[str]) -> str:
    """The alternatives for what may follow where these texts, and no others, must not."""
    by_letter: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_letter.setdefault(text[0], []).append(text[1:])
    ways = [] if "" in texts else [""]
    ways.append(f"[^{''.join(map(_escaped, by_letter))}]{_ANY}" if by_letter else "(?s:.+)")
    ways += [f"{_escaped(letter)}(?:{_others(rest)})" for letter, rest in by_letter.items()]
    return "|".join(ways)


def _escaped(letter: str) -> str:
    return letter if letter.isalnum() and letter.isascii() else f"\\U{ord(letter):08X}"
