"""Texts and patterns with characters that JSON cannot spell here: refused where an answer would not fit."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.engine.byte_grammars import by_schema, compiled, tools_spec

from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.protocol.request import GrammarSpec


@pytest.mark.parametrize("text", ["\u0001", "a\u0001b", "a\u007f"])
@pytest.mark.parametrize("keyword", ["const", "enum", "nested"])
def test_a_text_that_cannot_be_written_is_refused_by_its_place(text: str, keyword: str) -> None:
    """The compiler would leave the character out."""
    value: Any = {"const": text, "enum": ["x", text], "nested": [{"k": text}]}[keyword]
    schema = {"properties": {"a": {"enum" if keyword == "nested" else keyword: value}}, "required": ["a"]}
    said = f"at /properties/a/.*{re.escape(repr(text))} has the control character U\\+.* leave it out"
    with pytest.raises(InvalidGrammar, match=said):
        by_schema(schema)
    with pytest.raises(InvalidGrammar, match=said):
        compiled(GrammarSpec("grammar", f"start: %json {json.dumps(schema)}"))
    with pytest.raises(InvalidGrammar, match=said):
        compiled(tools_spec([("f", json.dumps(schema), True)], free=True))


REFUSED = [
    "a\u0001b", r"a\x01b", r"\u0001", r"\u{1}", r"\U{01}", r"\x7f", r"\a", r"\v", r"(a|\x00)",
    r"[\x01]", r"[\x00-\x07]", r"[[\x01]]", r"[\n-\f--\n\f]", r"[\n-\f&&[^\n\f]]", r"[^\x01-\u{10ffff}]",
    r"(?-u:[^\x01-\xff])", r"[\x01\x01]?",
]  # fmt: skip
TAKEN = [
    r"^[\x00-\x7f]*$", r"^[^\x00-\x1f]+$", r"^[\t\x0b a]$", r"^[^\x00\s]*$", r"^[\s\x00]$", r"^[]\x01]+$",
    r"^[\x01-]$",
    r"^\\x01$", r"^\\\\a$", r"^[\x00-\x1f]$", r"^\p{Cc}$", r"^\s$", r"^.$", r"^[[:cntrl:]]$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REFUSED)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_may_ask_for_one_is_refused(pattern: str, keyword: str) -> None:
    part = {"type": "string", "pattern": pattern} if keyword == "pattern" else {keyword: {pattern: {}}}
    with pytest.raises(InvalidGrammar, match=r"at /items: the pattern .* names U\+.* write it without"):
        by_schema({"type": "array", "items": part})


@pytest.mark.parametrize("pattern", TAKEN)
def test_a_pattern_that_has_other_characters_is_taken(pattern: str) -> None:
    matcher = by_schema({"type": "string", "pattern": pattern})
    assert matcher.failure is None
    texts = (
        "".join(one)
        for size in range(4)
        for one in product(["a", " ", "\n", "\t", "-", "]", "\\", "x01"], repeat=size)
    )
    assert any(matcher.copy().consume(list(json.dumps(text).encode())) for text in texts)


PIECES = [
    "a", "b", "x?", r"\x01", r"\x01?", r"\x7f*", "[ab]", r"[a\x01]", r"[\x01]", r"[\x00-\x1f]", r"[\x7fé]?",
    r"[^\x01a]",
    r"(a|\x01b)", r"(\x01a|b)*", r"[\x01é]*", "é?", r"\s?", ".", r"(?:[\x00-\x7f]{2})?", r"[^a-z]*",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), st.booleans())
def test_what_a_pattern_lets_past_matches_it(pieces: list[str], whole: bool) -> None:
    pattern = f"^{''.join(pieces)}$" if whole else "".join(pieces)
    try:
        matcher = by_schema({"type": "string", "pattern": pattern})
    except InvalidGrammar:
        assume(False)
    for size in range(4):
        for text in map("".join, product("abé\n", repeat=size)):
            if matcher.copy().consume(list(json.dumps(text, ensure_ascii=False).encode())):
                assert re.search(pattern.replace("$", r"\Z"), text), (pattern, text)


@pytest.mark.parametrize(
    "part", ['"a', "/a", "<a", "%", '"%json ', "%json {", r"\p{", r"\x{1", "[", "[^]", "#/"]
)
def test_reading_takes_time_that_grows_with_the_length(part: str) -> None:
    """256 KiB are allowed. A time that grows with their square would be minutes."""
    begin = time.process_time()
    for make in (
        lambda text: GrammarSpec("grammar", f"start: {text}"),
        lambda text: GrammarSpec("json_schema", json.dumps({"pattern": text})),
    ):
        with suppress(InvalidGrammar):
            compiled(make(part * (2**17 // len(part))))
    assert time.process_time() - begin < 5
