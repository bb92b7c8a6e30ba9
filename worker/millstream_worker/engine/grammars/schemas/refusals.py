"""The compiler's messages on a schema in words that name the keyword, and what to write instead."""

from __future__ import annotations

import re
from typing import NamedTuple

_BY_KEYWORD = {
    "contains": "bound the list by maxItems of at most 16, or leave it out",
    "dependentSchemas": "write the cases as anyOf",
    "$dynamicRef": "write $ref",
    "if": "write the cases as anyOf",
    "not": "say what is wanted in place of what is not",
    "propertyNames": "write enum, pattern or lengths for the names, or name the properties",
    "unevaluatedItems": "write items",
    "unevaluatedProperties": "write additionalProperties",
    "uniqueItems": "give items an enum of at most 5 values, or leave it out and check the answer",
}


class _Known(NamedTuple):
    message: re.Pattern[str]
    words: str  # with the groups of the message
    remedy: str


_KNOWN = tuple(
    _Known(re.compile(message, re.DOTALL), words, remedy)
    for message, words, remedy in (
        (
            "oneOf constraints are not supported.*",
            'the options of "oneOf" may overlap, which cannot be kept',
            "give each a constant of its own in a required property, or write anyOf",
        ),
        ("Unsatisfiable schema: (.*)", r"no value fits: \1", "correct it"),
        (
            "patternProperty regexes (.*) are not disjoint.*",
            r'patterns of "patternProperties" overlap: \1',
            "write them so that a name fits one at most",
        ),
        (
            "Resource '(.*?)' is not present.*",
            r'"$ref" leads out of the schema, to \1',
            "write what is meant into $defs",
        ),
        (
            "circular references with sibling keys.*: (?:json-schema://)?/?(.*)",
            r'"$ref" beside other keywords leads to itself: \1',
            "leave the others out",
        ),
        (
            "min/maxProperties only supported.*",
            '"minProperties" and "maxProperties" cannot be kept beside properties that may be left out',
            "make those required, or leave the bounds out",
        ),
        ("(.*look-around.*)", r"\1", "write the pattern without"),
        ("(regex parse error.*)", r"\1", "correct the pattern"),
        ("(.*'multipleOf' has too many digits.*)", r"\1", "give it fewer"),
        ("(.*does not exist.*)", r"\1", "correct the reference"),
    )
)
_KEYWORDS = re.compile(r'Unimplemented keys: \[".*', re.DOTALL)
_KEPT = re.compile('the keyword "([^"]+)" cannot be kept')


def reworded(message: str) -> str:
    """Returns the compiler's message as people read it."""
    if _KEYWORDS.fullmatch(message):
        return f'the keyword "{_shown(message)}" cannot be kept'
    for known in _KNOWN:
        if found := known.message.fullmatch(message):
            return found.expand(known.words)
    return message


def remedy_of(reason: str) -> str:
    """Returns what to do about a reason that was reworded."""
    if found := _KEPT.search(reason):
        return _BY_KEYWORD.get(found[1], "leave it out")
    for known in _KNOWN:
        begin = known.words.partition("\\1")[0]
        if begin in reason if begin else known.message.match(reason):
            return known.remedy
    return "change it"


def _shown(message: str) -> str:
    """The keyword that the others go with: of `if`, `then` and `else`, and beside others, the first known."""
    names: list[str] = re.findall('"([^"]+)"', message)
    return next((name for name in names if name in _BY_KEYWORD), names[0])
