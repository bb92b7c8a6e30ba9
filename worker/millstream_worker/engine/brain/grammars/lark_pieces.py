"""The pieces of a grammar in Lark, as llguidance's lexer has them: comments, texts, patterns, tokens, and the
words before a JSON value."""

from __future__ import annotations

import json
import re

from llguidance.gbnf_to_lark import gbnf_to_lark

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
    """A grammar in Lark or GBNF, in Lark. As llguidance's `any_to_lark`, whose own look for Lark takes a time
    that grows with the square of the line feeds. Raises ValueError for what is no GBNF either.
    """
    if _IS_LARK.search(text):
        return text
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:
        raise ValueError(f"Failed to convert the grammar from GBNF to Lark: {error}") from error


def without_tokens(lark: str) -> str:
    """The same, with a letter for each token that is there by its id: for a check without a vocabulary. What
    stands in texts, patterns, comments and schemas stays as it is.
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
