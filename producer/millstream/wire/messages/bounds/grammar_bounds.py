"""Bounds the shape of a grammar in Lark or GBNF, as `format_bounds` does with patterns. Terminals are put in
where they are named, so that a few lines can be a text of any length. Their names are in capitals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from millstream.wire.messages.bounds.depth import MAX_DEPTH, is_deeper
from millstream.wire.messages.bounds.format_bounds import (
    MAX_PARTS,
    MAX_TEXT,
    UNTOLD,
    least_of,
    parts_of,
    problem_of_pattern,
    problem_of_shape,
)

MAX_RULES = 2000

_RULE = re.compile(  # its head is on one line
    r"^[ \t]*+[?!]*+([\w-]++)(?:\.-?\d++)?+[^\S\n]*+"
    r'(?P<attributes>\[[^]"\n]*+(?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"[^]"\n]*+)*+\][^\S\n]*+)?+(?:::=|:)',
    re.MULTILINE,
)
_ATTRIBUTES_END = re.compile(r"\][^\S\n]*+:")  # a pattern in them may have line feeds: they are counted by it
_NAME = re.compile(r"(?<![\w-])_?[A-Z][A-Z0-9_-]*(?!\w)")
_REPEAT = re.compile(r"~\s*+(\d++)(?:\s*+\.\.\s*+\d++)?+")
_AS_PATTERN = str.maketrans("[]", "()", " \t\n\r")
_PIECE = re.compile(
    r"(?:\#|//)[^\n]*+"
    r'|"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*+"'
    r"|/(?:\\.|[^/\\])++/"
    r"|<[^<>\s]++>"
    r"|%(?P<keyword>json|regex|llguidance)[ \t\r\n]*+"
    r'|(?P<odd>["/<])'
    r'|[^"/<%\#]++|%'
)
_IS_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)  # else it is GBNF, without any
_MARK = re.compile(r'["/]')
_BODIES = {
    '"': re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'),
    "/": re.compile(r"[^/\\\n]*+(?:\\.[^/\\\n]*+)*+"),
}


def problem_of_grammar(text: str) -> str | None:
    """Returns the problem of a grammar, and the remedy."""
    try:
        text, schemas = schemas_in(text)
    except (ValueError, RecursionError) as error:
        return f"has a %json that is none: {error}; write a JSON schema"
    if is_deeper(schemas, MAX_DEPTH + 1):  # they are in a list
        return f"has a %json nested more than {MAX_DEPTH} deep; move parts to $defs, and refer to them"
    if problem := problem_of_shape({"%json": schemas}):
        return problem
    starts = list(_RULE.finditer(text))
    if (rules := _rules(text, starts)) > MAX_RULES:
        return f"has {rules} rules and may have {MAX_RULES}; join some"
    for literal in literals(text):
        if problem := _problem_of_literal(literal):
            return f"{problem}: {literal.body!r:.80}"
    ends = [*(start.start() for start in starts[1:]), len(text)]
    bodies = {start[1]: text[start.end() : end] for start, end in zip(starts, ends, strict=False)}
    return _problem_of_terminals(bodies)


def _rules(text: str, starts: Sequence[re.Match[str]]) -> int:
    """Returns an upper bound of their number: whatever ends like a rule's attributes counts as a rule."""
    with_attributes = sum(start["attributes"] is not None for start in starts)
    return len(starts) - with_attributes + len(_ATTRIBUTES_END.findall(text))


def _problem_of_literal(literal: Literal) -> str | None:
    if literal.is_pattern:
        return problem_of_pattern(literal.body)
    if len(literal.body) > MAX_TEXT:
        return f"has {len(literal.body)} characters in one text, and may have {MAX_TEXT}; shorten it"
    return None


def _problem_of_terminals(bodies: dict[str, str]) -> str | None:
    """Checks terminals only: the compiler counts what rules repeat."""
    terminals = {name: _Terminal(body) for name, body in bodies.items() if _NAME.fullmatch(name)}
    inner = {name: [one for one in made.names if one in terminals] for name, made in terminals.items()}
    try:
        order = list(TopologicalSorter(inner).static_order())
    except CycleError as error:
        return f"has a terminal in itself: {' in '.join(error.args[1]):.200}; write a rule, in lower case"
    for name in order:
        if problem := terminals[name].problem(terminals):
            return f"{name} {problem}"
    return None


class _Terminal:
    """One terminal. `parts` and `least` are a pattern's, and include those of the terminals in it."""

    def __init__(self, body: str) -> None:
        self._rest = _with_repeats(body)
        self.names = _NAME.findall(self._rest)
        self.parts = parts_of(body)
        self.least = 0

    def problem(self, terminals: dict[str, _Terminal]) -> str | None:
        """Returns its problem, if any. The lengths of the terminals in it must be known."""
        lengths = {name: terminals[name].least for name in self.names if name in terminals}
        pattern = _NAME.sub(lambda name: f"a{{{lengths.get(name[0], 1)}}}", self._rest)
        pattern = _REPEAT.sub(r"{\1}", pattern).translate(_AS_PATTERN)
        self.least = least_of(pattern) or 0
        self.parts += sum(terminals[name].parts for name in self.names if name in terminals)
        self.parts = min(self.parts, UNTOLD)
        if self.parts > MAX_PARTS:
            return f"has {self.parts} parts that may be left out or repeated, and may have {MAX_PARTS}"
        if self.least > MAX_TEXT:
            return f"has {self.least} characters, and may have {MAX_TEXT}; use smaller repeats"
        return None


def _with_repeats(body: str) -> str:
    """Returns the body with each literal replaced by a pattern of the same length."""
    made, place = [], 0
    for literal in literals(body):
        length = least_of(literal.body) or 0 if literal.is_pattern else len(literal.body)
        made += [body[place : literal.start], f"a{{{length}}}"]
        place = literal.end
    return "".join([*made, body[place:]])


def schemas_in(grammar: str) -> tuple[str, list[Any]]:
    """Finds the JSON schemas of a grammar in Lark, behind each `%json` that stands in no comment, text or
    pattern; a test compares them with those of the engine (`engine/grammars/lark_pieces.py`). Returns
    the grammar with an empty value in place of each schema, and the schemas. What begins and does not end
    ends the search: the engine refuses it. Raises ValueError for a keyword without JSON.
    """
    if not _IS_LARK.search(grammar):
        return grammar, []
    rests, schemas, copied, place = [], [], 0, 0
    while (piece := _PIECE.match(grammar, place)) and not piece["odd"]:
        place = piece.end()
        if not piece["keyword"]:
            continue
        value, end = json.JSONDecoder().raw_decode(grammar, place)
        if piece["keyword"] == "json":
            schemas.append(value)
            rests.append(grammar[copied:place])
            copied = end
        place = end
    return "{}".join([*rests, grammar[copied:]]), schemas


class Literal(NamedTuple):
    """A text in quotes, or a pattern between slashes: `start` and `end` include these, `body` does not."""

    start: int
    end: int
    is_pattern: bool
    body: str


def literals(grammar: str) -> Iterator[Literal]:
    """Yields them in their order. None contains a line feed, and no pattern is empty."""
    unclosed = dict.fromkeys(_BODIES, 0)  # to where no such mark closes: one inside is read to the same place
    place = 0
    while found := _MARK.search(grammar, place):
        mark, place = found[0], found.end()
        if place <= unclosed[mark] or (mark == "/" and grammar.startswith("/", place)):
            continue
        body = _BODIES[mark].match(grammar, place)
        assert body is not None, "it may be empty"
        if not grammar.startswith(mark, body.end()):
            unclosed[mark] = body.end()
            continue
        place = body.end() + 1
        yield Literal(found.start(), place, mark == "/", body[0])
