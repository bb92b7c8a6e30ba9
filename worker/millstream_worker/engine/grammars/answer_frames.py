"""Grammars around others, as llguidance has them: a thought before an answer, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from millstream_worker.engine.protocol.request import GrammarSpec

Part = dict[str, Any]  # one of llguidance's grammars: the first is the start, others are called by their name

_ANY_TEXT = "/(?s:.*)/"


def with_thought(grammar: str, spec: GrammarSpec) -> str:
    """The same behind a thought, where the spec has one; `grammar` in llguidance's form."""
    if spec.thought_end is None:
        return grammar
    first, *others = parts_of(grammar)
    begin = "" if spec.thought_begin is None else f"<[{spec.thought_begin}]> "
    lines = [
        f"start: thought{'?' if begin else ''} @answer",
        f"thought: {begin}INSIDE <[{spec.thought_end}]> /\\n{{0,2}}/",
        f"INSIDE: {_without('</think>')}",
    ]
    return joined([_lark(lines), first | {"name": "answer"}, *others])


def tools_grammar(spec: GrammarSpec, arguments: Sequence[str]) -> str:
    """Writes one or more calls of the functions in the spec's text (see `intake/grammar_request.py`); where
    it is `free`, with any text around them, or none. `arguments`: the grammar of each function's, in
    llguidance's form.
    """
    form = json.loads(spec.text)
    parts = []
    for place, grammar in enumerate(arguments):
        [part] = parts_of(grammar)
        parts.append(part | {"name": f"arguments_{place}"})
    functions = [
        f"{json.dumps(name + _QUOTED)} @arguments_{place}"
        for place, (name, *_) in enumerate(form["functions"])
    ]
    begin, end = (json.dumps(text) if token is None else f"<[{token}]>" for text, token in form["marks"])
    lines = _free(begin, form) if form["free"] else _forced(begin, form)
    lines.append(f'call: "\\n{{\\"name\\": \\"" ({" | ".join(functions)}) "}}\\n" {end}')
    return joined([_lark(lines), *parts])


_QUOTED = '", "arguments": '  # between the name of a function and its arguments


def parts_of(grammar: str) -> list[Part]:
    parts: list[Part] = json.loads(grammar)["grammars"]
    return parts


def of_lark(text: str) -> str:
    """A grammar in Lark, in llguidance's form."""
    return joined([{"lark_grammar": text}])


def joined(parts: Sequence[Part]) -> str:
    return json.dumps({"grammars": parts})


def _forced(begin: str, form: dict[str, Any]) -> list[str]:
    more = f' ("\\n" {begin} call)*' if form["many"] else ""
    return [f"start: {begin} call{more}"]


def _free(begin: str, form: dict[str, Any]) -> list[str]:
    times = "*" if form["many"] else "?"
    text, token = form["marks"][0]
    if token is None:
        return [
            f"start: (head call){times} REST",
            f"head[lazy]: TEXT {begin}",
            f"TEXT: {_ANY_TEXT}",
            f"REST: {_without(text)}",
        ]
    return [f"start: (TEXT {begin} call){times} TEXT", f"TEXT: {_without(text)}"]


def _without(word: str) -> str:
    """A rule for any text without this word: the word is a token, and must not be spelled by other tokens."""
    spelled = word.replace("/", "\\/")
    return f"{_ANY_TEXT} & ~/(?s:.*){spelled}(?s:.*)/"


def _lark(lines: Sequence[str]) -> Part:
    return {"lark_grammar": "\n".join(lines)}
