"""Bounds the shape of a schema or a pattern. A few characters can ask for time and memory that grow with
their square, or for a text of any length that leaves no choice; the compiler's own limits count neither.

It needs no compiler: where a text can be read in two ways, the larger count is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite, lcm
from typing import Any

MAX_PARTS = 500  # of one pattern: what may be left out or repeated, and classes such as \p{L}
MAX_ALL_PARTS = 2000  # of all patterns of a schema
MAX_TEXT = 512  # characters of a constant, of a property's name, and of a pattern with its repeats
MAX_CHOICE = 16 * 1024  # characters of one of the texts to choose from, and of a `regex`
MAX_OPTIONAL = 500  # properties of one object
MAX_ALL_OPTIONAL = 2000  # of a schema
MAX_PATTERN_PROPERTIES = 64  # of a schema: each is compared with each
MAX_MULTIPLE = 100_000  # of all multipleOf of a schema, the least common one: numbers may meet in one place

_Path = tuple[Any, object]  # the path before, or None, and a name or a place
LONGEST_PATH = 200  # characters of a path that an error shows, the last ones
UNTOLD = 10**9  # larger lengths are not told apart
_PARTS = re.compile(r"\\[pPwWdDsS]|[*?{+]|[|(](?=[|)])|^\||\|$")
_TOKEN = re.compile(
    r"(?P<plain>[^\\{*+?|()\[\]]++)|(?P<verbose>\(\?[a-zA-Z-]*x)|\{\s*+(?P<repeat>\d++)[\s,\d]*+\}"
    r"|(?P<mark>[*+?])|(?P<or>\|)|(?P<open>\()|(?P<close>\))|(?P<begin>\[\^?\]?)|(?P<end>\])|\\?.",
    re.DOTALL,
)


def problem_of_pattern(pattern: str, most: int = MAX_TEXT) -> str | None:
    """Returns the problem of a regular expression, and the remedy. `most`: characters."""
    if (parts := parts_of(pattern)) > MAX_PARTS:
        return (
            f"has {parts} parts that may be left out or repeated, or are classes such as \\p{{L}}, and may "
            f"have {MAX_PARTS}; use fewer"
        )
    least = least_of(pattern)
    if least is None:
        return "has the flag x; write it without the flag, and without the spaces that this allows"
    if least > most:
        return f"has {least} characters with its repeats, and may have {most}; use smaller repeats"
    return None


def problem_of_shape(schema: dict[str, Any]) -> str | None:
    """Returns the problem of a schema whose depth is bounded."""
    sums = dict.fromkeys(_SUMS, 0)
    multiple = 1
    for path, part in _parts(schema):
        if isinstance(part, str):
            if problem := _problem_of_text(part):
                return f"at {_spelled(path)}: {problem}"
            continue
        if not part.keys().isdisjoint(_COUNTED):
            multiple = min(lcm(multiple, _divisor(part.get("multipleOf"))), UNTOLD)
            for name, count in _counts(part).items():
                sums[name] += count
        if problem := _problem_of_object(part) or _problem_of_sums(sums, multiple):
            return f"at {_spelled(path)}: {problem}"
    return None


def _problem_of_sums(sums: dict[str, int], multiple: int) -> str | None:
    for name, (most, what) in _SUMS.items():
        if sums[name] > most:
            return f"{what} are {sums[name]} here and before, and may be {most} in all; leave some out"
    if multiple > MAX_MULTIPLE:
        return (
            f"the least common multiple of multipleOf here and before is {multiple}, without decimal points, "
            f"and may be {MAX_MULTIPLE}; use rounder numbers"
        )
    return None


def _problem_of_object(part: dict[str, Any]) -> str | None:
    for pattern in _patterns(part):
        if problem := problem_of_pattern(pattern):
            return f"the pattern {pattern!r:.80} {problem}"
    if (optional := _optional(part)) > MAX_OPTIONAL:
        return f"has {optional} properties that are not required, and may have {MAX_OPTIONAL}; require more"
    return _problem_of_text(max(part, key=len, default=""))


def _problem_of_text(text: str) -> str | None:
    if len(text) > MAX_TEXT:
        return f"the text {text!r:.80} has {len(text)} characters, and may have {MAX_TEXT}; shorten it"
    return None


def _parts(schema: dict[str, Any]) -> Iterator[tuple[_Path | None, dict[str, Any] | str]]:
    """Yields each object and each text in a constant, with its path. Data that looks like a schema counts as
    one: a reference may point there.
    """
    open_parts: list[tuple[_Path | None, Any, bool]] = [(None, schema, False)]
    while open_parts:
        path, part, is_data = open_parts.pop()
        if isinstance(part, dict) or (is_data and isinstance(part, str)):
            yield path, part
        pairs: Iterable[tuple[object, Any]] = ()
        if isinstance(part, dict | list):
            pairs = part.items() if isinstance(part, dict) else enumerate(part)
        inner = [
            ((path, name), value, is_data or name in ("const", "enum"))
            for name, value in pairs
            if isinstance(value, dict | list | str)
        ]
        open_parts += reversed(inner)


def _spelled(path: _Path | None) -> str:
    """Spells a path, only for an error: many parts may have a long one."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(f"/{name!s:.40}")
    return "".join(reversed(names))[-LONGEST_PATH:] or "/"


def _patterns(part: dict[str, Any]) -> list[str]:
    named = part.get("patternProperties")
    return _texts([part.get("pattern"), *(named if isinstance(named, dict) else ())])


def _counts(part: dict[str, Any]) -> dict[str, int]:
    """Returns an object's additions to the sums of its schema."""
    named = part.get("patternProperties")
    return {
        "optional": _optional(part),
        "patternProperties": len(named) if isinstance(named, dict) else 0,
        "parts": sum(map(parts_of, _patterns(part))),
    }


def _optional(part: dict[str, Any]) -> int:
    properties = part.get("properties")
    return len(properties.keys() - _texts(part.get("required"))) if isinstance(properties, dict) else 0


def _divisor(step: Any) -> int:
    """Returns a multipleOf in units of its last digit."""
    if isinstance(step, bool) or not isinstance(step, int | float) or not step:
        return 1
    if isinstance(step, float) and not isfinite(step):
        return 1
    number = abs(Decimal(str(step))).normalize()
    exponent = int(number.as_tuple().exponent)
    return int(min(number.scaleb(-exponent) if exponent < 0 else number, Decimal(UNTOLD)))


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def parts_of(pattern: str) -> int:
    return len(_PARTS.findall(pattern))


def least_of(pattern: str) -> int | None:
    """Counts the characters of the longest alternatives, each repeated as seldom as it may be. None: the
    pattern has the flag x. A class counts as one character, and may have classes in it.
    """
    groups, last, depth = [_Alternatives()], 0, 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        depth += (kind == "begin") - (kind == "end" and depth > 0)
        if depth:
            continue
        if kind == "verbose":
            return None
        if kind == "mark":
            continue
        if kind == "open":
            groups.append(_Alternatives())
        elif kind == "or":
            groups[-1].end_alternative()
        elif kind == "repeat":
            more = last * (max(int(token["repeat"][:10]), 1) - 1)
            groups[-1].length += more
            last = min(last + more, UNTOLD)
        elif kind == "plain":
            groups[-1].length += len(token[0])
            last = 1
        else:
            last = groups.pop().end_alternative() if kind == "close" and len(groups) > 1 else 1
            groups[-1].length += last
    return min(sum(group.end_alternative() for group in groups), UNTOLD)


@dataclass(slots=True)
class _Alternatives:
    """Lengths of the alternative that is being read, and of the longest before."""

    length: int = 0
    longest: int = 0

    def end_alternative(self) -> int:
        self.longest = min(max(self.longest, self.length), UNTOLD)
        self.length = 0
        return self.longest


_COUNTED = frozenset(("multipleOf", "pattern", "patternProperties", "properties"))
_SUMS = {  # most, and what
    "optional": (MAX_ALL_OPTIONAL, "properties that are not required"),
    "patternProperties": (MAX_PATTERN_PROPERTIES, "patternProperties"),
    "parts": (MAX_ALL_PARTS, "parts of patterns that may be left out or repeated"),
}
