"""Splits a grammar in Lark into the pieces of llguidance's lexer: comments, texts, patterns, tokens, and the
keywords before a JSON value."""

from __future__ import annotations

import json
import re

from millstream_worker.engine.grammars.gbnf import lark_from_gbnf

PIECE = re.compile(
    r"(?:\#|//)[^\n]*+"
    r'|"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*+"'
    r"|/(?:\\.|[^/\\])++/"
    r"|(?P<token><\[\d++\]>)|<[^<>\s]++>"
    r"|%(?P<keyword>json|regex|llguidance)(?P<space>[ \t\r\n]*+)"
    r'|(?P<odd>["/<])'
    r'|[^"/<%\#]++|%'
)
_IS_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)


def lark_of(text: str) -> str:
    """Converts a grammar in Lark or GBNF to Lark. llguidance's own `any_to_lark` takes time in proportion to
    the square of the line feeds. Raises ValueError for text that is neither.
    """
    if _IS_LARK.search(text):
        return text
    try:
        return lark_from_gbnf(text)
    except Exception as error:
        raise ValueError(f"Failed to convert the grammar from GBNF to Lark: {error}") from error


def without_tokens(lark: str) -> str:
    """Returns the grammar with a letter for each token id, for a check without a vocabulary. Texts, patterns,
    comments and schemas stay as they are.
    """
    made, copied, place = [], 0, 0
    while (piece := PIECE.match(lark, place)) and not piece["odd"]:
        place = piece.end()
        if piece["keyword"]:
            _, place = json.JSONDecoder().raw_decode(lark, place)
        elif piece["token"]:
            made += [lark[copied : piece.start()], "/x/"]
            copied = place
    return "".join([*made, lark[copied:]])
