"""Calls are found in an answer's text as the grammar writes them, whatever their arguments say."""

from __future__ import annotations

import json

import pytest

from millstream_worker.engine.grammars.partial.written_calls import calls_in, without_calls

BEGIN, END = "<tool_call>", "</tool_call>"


def call(name: str, **arguments: object) -> str:
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n{END}'


@pytest.mark.parametrize("said", ["", "x", "}\n", f"{END}", f"}}\\n{END}", call("other"), '"'])
def test_a_call_ends_where_its_mark_ends(said: str) -> None:
    text = f"before {call('f', said=said)} between {call('g.h', n=1)} behind"
    assert calls_in(text, BEGIN, END) == [("f", json.dumps({"said": said})), ("g.h", '{"n": 1}')]
    assert without_calls(text, BEGIN, END) == "before  between  behind"


def test_what_is_cut_or_without_its_marks_is_no_call() -> None:
    whole = call("f", a=1)
    for text in (whole[:-1], whole[1:], whole.replace("\n", " "), f"{BEGIN}{END}"):
        assert calls_in(text, BEGIN, END) == []
