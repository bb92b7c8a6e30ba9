"""Finds JSON schemas in a grammar in Lark: behind each `%json` that stands in no comment, text or pattern.
The engine's own reader (`engine/grammars/lark_pieces.py`) finds the same ones; a test compares them.
"""

from __future__ import annotations

import json
import re
from typing import Any

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


def schemas_in(grammar: str) -> tuple[str, list[Any]]:
    """Returns the grammar with an empty value in place of each schema, and the schemas. What begins and does
    not end ends the search: the engine refuses it. Raises ValueError for a keyword without JSON.
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
