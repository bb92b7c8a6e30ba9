"""Grammars around others, as llguidance has them: a thought before an answer, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_frames import ANY_TEXT, CallFrame, without
from millstream_worker.engine.grammars.calls.parameters import Parameter
from millstream_worker.engine.protocol.request import GrammarSpec

Part = dict[str, Any]  # one of llguidance's grammars: the first is the start, others are called by their name


def with_thought(grammar: str, spec: GrammarSpec) -> str:
    """The same behind a thought, where the spec has one; `grammar` in llguidance's form."""
    if spec.thought_end is None:
        return grammar
    first, *others = parts_of(grammar)
    lines = _behind_think(spec) if spec.channels is None else _behind_channels(spec, spec.channels)
    return joined([_lark(lines), first | {"name": "behind_thought"}, *others])


def _behind_think(spec: GrammarSpec) -> list[str]:
    begin = "" if spec.thought_begin is None else f"<[{spec.thought_begin}]> "
    return [
        f"start: thought{'?' if begin else ''} @behind_thought",
        f"thought: {begin}INSIDE <[{spec.thought_end}]> /\\n{{0,2}}/",
        f"INSIDE: {without('</think>')}",
    ]


def _behind_channels(spec: GrammarSpec, header: tuple[int, int, int]) -> list[str]:
    """Any number of thoughts, and the head of the answer; calls, and texts beside them, have their own."""
    begin, channel, message = (f"<[{token}]>" for token in header)
    begun = "" if spec.thought_begin is not None else "rest "
    head = "" if spec.type == "tools" else f'{channel} "final" {message} '
    return [
        f"start: {begun}thought* {head}@behind_thought",
        f'thought: {channel} ("analysis" | "commentary") {message} rest',
        f'rest: INSIDE <[{spec.thought_end}]> {begin} "assistant"',
        f"INSIDE: {ANY_TEXT}",
    ]


def tools_grammar(
    spec: GrammarSpec,
    rules: Mapping[str, str],
    answer: str | None = None,
    parameters: Sequence[Sequence[Parameter] | None] = (),
) -> str:
    """Writes one or more calls of the functions in the spec's text (made by
    `intake/preparation/grammar_request.py`); where it is `free`, with any text before them, or none.
    `rules`: by name the grammar of each function's arguments, or of a parameter's value; `answer`: that of an
    answer which may stand for all calls. All in llguidance's form. `parameters`: see CallFrame.
    """
    form = json.loads(spec.text)
    parts = []
    for name, grammar in rules.items():
        [part] = parts_of(grammar)
        parts.append(part | {"name": name})
    if answer is not None:
        first, *others = parts_of(answer)
        parts += [first | {"name": "answer"}, *others]
    goes_on = spec.whitespace_pattern is not None
    written = HERMES if goes_on else CallForm.of_plain(form["form"])
    names = [name for name, *_ in form["functions"]]
    frame = CallFrame(written, names, form["tokens"], form["many"], parameters)
    lines = frame.lines(may_be_text=form["free"], has_format=answer is not None, goes_on=goes_on)
    return joined([_lark(lines), *parts])


def parts_of(grammar: str) -> list[Part]:
    parts: list[Part] = json.loads(grammar)["grammars"]
    return parts


def of_lark(text: str) -> str:
    """A grammar in Lark, in llguidance's form."""
    return joined([{"lark_grammar": text}])


def joined(parts: Sequence[Part]) -> str:
    return json.dumps({"grammars": parts})


def _lark(lines: Sequence[str]) -> Part:
    return {"lark_grammar": "\n".join(lines)}
