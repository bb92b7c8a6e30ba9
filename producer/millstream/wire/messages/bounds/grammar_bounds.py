"""Bounds on the shape of a grammar in Lark or GBNF, as `format_bounds` has them for patterns. Terminals are
put in where they are named, so that a few lines can be a text of any length. Their names are in capitals.
"""

from __future__ import annotations

import json
import re
from graphlib import CycleError, TopologicalSorter
from typing import Any

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

_RULE = re.compile(
    r"""^[ \t]*[?!]*([\w-]+)(?:\.-?\d+)?\s*(?:\[[^]"]*(?:"[^"]*"[^]"]*)*\]\s*)?(?:::=|:)""", re.MULTILINE
)
_LITERAL = re.compile(r'"(?P<text>(?:\\.|[^"\\\n])*)"|/(?P<pattern>(?:\\.|[^/\\\n])+)/')
_NAME = re.compile(r"(?<![\w-])_?[A-Z][A-Z0-9_-]*(?!\w)")
_SCHEMA = re.compile(r"%json\s*(?=\{)")
_REPEAT = re.compile(r"~\s*(\d+)(?:\s*\.\.\s*\d+)?")
_AS_PATTERN = str.maketrans("[]", "()", " \t\n\r")


def problem_of_grammar(text: str) -> str | None:
    """What is wrong with a grammar, and the remedy."""
    try:
        text, schemas = _without_schemas(text)
    except (ValueError, RecursionError) as error:
        return f"has a %json that is none: {error}; write a JSON schema"
    if problem := problem_of_shape({"%json": schemas}):
        return problem
    starts = list(_RULE.finditer(text))
    if len(starts) > MAX_RULES:
        return f"has {len(starts)} rules and may have {MAX_RULES}; join some"
    for literal in _LITERAL.finditer(text):
        pattern = literal["pattern"] or re.escape(literal["text"])
        if problem := problem_of_pattern(pattern):
            return f"{problem}: {pattern!r:.80}"
    ends = [*(start.start() for start in starts[1:]), len(text)]
    bodies = {start[1]: text[start.end() : end] for start, end in zip(starts, ends, strict=False)}
    return _problem_of_terminals(bodies)


def _without_schemas(text: str) -> tuple[str, list[Any]]:
    """The grammar with an empty one for each of its schemas, and these."""
    rests, schemas, place = [], [], 0
    while found := _SCHEMA.search(text, place):
        rests.append(text[place : found.end()])
        schema, place = json.JSONDecoder().raw_decode(text, found.end())
        schemas.append(schema)
    return "{}".join([*rests, text[place:]]), schemas


def _problem_of_terminals(bodies: dict[str, str]) -> str | None:
    definitions = {name: _Definition(name, body) for name, body in bodies.items()}
    inner = {
        name: [one for one in made.names if one in bodies]
        for name, made in definitions.items()
        if made.terminal
    }
    try:
        order = list(TopologicalSorter(inner).static_order())
    except CycleError as error:
        return f"has a terminal in itself: {' in '.join(error.args[1]):.200}; write a rule, in lower case"
    for name in [*order, *(name for name in bodies if name not in inner)]:
        if problem := definitions[name].problem(definitions):
            return f"{name} {problem}"
    return None


class _Definition:
    """A rule or terminal. `parts`, `least`: as of a pattern, with those of the terminals in it."""

    def __init__(self, name: str, body: str) -> None:
        self.terminal = _NAME.fullmatch(name) is not None
        self._rest = _LITERAL.sub(_as_repeat, body)
        self.names = _NAME.findall(self._rest)
        self.parts = parts_of(body)
        self.least = 0

    def problem(self, definitions: dict[str, _Definition]) -> str | None:
        """`definitions`: those of the terminals in it have been asked before. Rules need no bound: the
        compiler counts what they repeat.
        """
        if not self.terminal:
            return None
        lengths = {name: definitions[name].least for name in self.names if name in definitions}
        pattern = _NAME.sub(lambda name: f"a{{{lengths.get(name[0], 1)}}}", self._rest)
        pattern = _REPEAT.sub(r"{\1}", pattern).translate(_AS_PATTERN)
        self.least = least_of(pattern) or 0
        self.parts += sum(definitions[name].parts for name in self.names if name in definitions)
        self.parts = min(self.parts, UNTOLD)
        if self.parts > MAX_PARTS:
            return f"has {self.parts} parts that may be left out or repeated, and may have {MAX_PARTS}"
        if self.least > MAX_TEXT:
            return f"has {self.least} characters, and may have {MAX_TEXT}; use smaller repeats"
        return None


def _as_repeat(literal: re.Match[str]) -> str:
    """A pattern as long as the literal."""
    return f"a{{{len(literal['text'] or '') or least_of(literal['pattern'] or '') or 0}}}"
