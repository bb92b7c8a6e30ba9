"""Calls are read as their grammar writes them, in each form, however the text is cut into pieces."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.byte_grammars import compiled, tools_spec

from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_reader import CallReader
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.protocol.request import GrammarSpec

LLAMA = CallForm('{"name": "', '", "parameters": ', "}")
FORMS = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": CallForm('[TOOL_CALLS] [{"name": "', '", "arguments": ', "}]", '}, {"name": "'),
    "mistral_3": CallForm("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]"),
    "deepseek": CallForm(
        "<｜calls｜><｜call｜>", "<｜sep｜>", "<｜end｜><｜ends｜>", "<｜end｜>\n<｜call｜>"
    ),
}
NAMES = ("get", "get_all", "a.b:c/d-e")
SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}, "required": ["a"]}
)
FUNCTIONS = dict.fromkeys(NAMES, SCHEMA)
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANSWER = GrammarSpec("json_schema", json.dumps(COUNT | {"additionalProperties": False}))


def written(form: CallForm, calls: list[tuple[str, str]], said: str = "") -> str:
    joints = [form.begin, *[form.joint] * len(calls)]
    called = "".join(
        joint + name + form.middle + given for joint, (name, given) in zip(joints, calls, strict=False)
    )
    return said + called + form.end


def spec(form: CallForm, **more: Any) -> GrammarSpec:
    return tools_spec([(name, SCHEMA, True) for name in NAMES], form=form, **more)


matcher_of = cache(compiled)


def taken(grammar: GrammarSpec, text: str) -> bool:
    """True if the grammar takes all of it."""
    return matcher_of(grammar).valid(list(text.encode())) == len(text.encode())


CALLS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.tuples(
            st.sampled_from(["", "}", '"', "\\", "}\n</tool_call>", "[TOOL_CALLS]", "🙂{[", '{"name": "get']),
            st.sampled_from([{}, {"b": []}, {"b": [1, {"c": "]"}]}, {"b": ["}]"]}]),
        ).map(lambda given: json.dumps({"a": given[0], **given[1]}, ensure_ascii=False)),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", FORMS)
@given(
    calls=CALLS,
    said=st.sampled_from(["", "So: ", "a <\n\n", "[TOOL", "<tool_cal l>"]),
    size=st.integers(1, 40),
)
def test_calls_of_any_form_are_read_in_pieces(
    name: str, calls: list[tuple[str, str]], said: str, size: int
) -> None:
    form = FORMS[name]
    calls, said = calls[: None if form.joint else 1], said if form.tag else ""
    text = written(form, calls, said)
    assert taken(spec(form, free=True, many=True), text)
    assert taken(spec(form, many=True), text.removeprefix(said))
    reader, content = CallReader(form, FUNCTIONS), ""
    for place in range(0, len(text), size):
        content += reader.feed(text[place : place + size])
    assert content + reader.finish(is_cut=False) == said.rstrip()
    assert [(call.name, call.arguments, call.whole) for call in reader.calls] == [
        (*call, True) for call in calls
    ]


@pytest.mark.parametrize("name", FORMS)
def test_a_cut_call_has_a_part_of_its_arguments(name: str) -> None:
    form, said = FORMS[name], "So " if FORMS[name].tag else ""
    text, given = written(form, [("get_all", '{"a": "x"}')], said), '{"a": "x"}'
    for cut in range(len(text)):
        reader = CallReader(form, FUNCTIONS)
        content = reader.feed(text[:cut]) + reader.finish(is_cut=True)
        assert content in (said.rstrip(), said[:cut], text[: len(said) + 1]) or not form.tag
        assert form.begin not in content
        assert [call.arguments for call in reader.calls] in ([], [given[: cut - text.index(given)]], [given])


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.tag])
@pytest.mark.parametrize("at_start", [False, True])
def test_a_call_cut_in_a_character_is_no_content(name: str, at_start: bool) -> None:
    """Tags have characters of several bytes, each of which may be a token."""
    form = FORMS[name]
    called = written(form, [("get", '{"a": "x"}'), ("a.b:c/d-e", "{}")][: 2 if form.joint else 1]).encode()
    for cut in range(len(form.tag[:2].encode()), len(called)):
        reader = CallReader(form, FUNCTIONS, at_start=at_start)
        content = reader.feed(called[:cut].decode(errors="replace")) + reader.finish(is_cut=True)
        assert content == "", called[:cut]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("text", ["only text ", "a < b", "[x]", '{"name": 1}', '{"name": "odd", "x": 2}', ""])
def test_an_answer_without_calls_is_its_text(name: str, text: str) -> None:
    for size in (1, 100):
        reader = CallReader(FORMS[name], FUNCTIONS)
        content = "".join(reader.feed(text[place : place + size]) for place in range(0, len(text), size))
        assert content + reader.finish(is_cut=False) == text
        assert not reader.calls


@pytest.mark.parametrize("name", FORMS)
def test_with_a_format_an_answer_is_of_it_or_calls(name: str) -> None:
    form = FORMS[name]
    grammar = spec(form, free=True, many=True, answer=ANSWER)
    assert taken(grammar, '{"n": 12}')
    assert taken(grammar, written(form, [("get", '{"a": "x"}')]))
    for other in ("So", '{"m": 1}', written(form, [("gone", "{}")]), written(form, [("get", '{"b": []}')])):
        assert not taken(grammar, other)


def test_an_answer_may_begin_as_a_call_without_a_tag_does() -> None:
    answer = GrammarSpec("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}}}')
    text = '{"name": "Ann"}'
    assert taken(spec(LLAMA, free=True, answer=answer), text)
    reader = CallReader(LLAMA, FUNCTIONS)
    assert reader.feed(text) + reader.finish(is_cut=False) == text


def test_text_with_an_unknown_call_goes_on_as_text() -> None:
    text = '<tool_call>\n{"name": "gone", "arguments": {}}\n</tool_call>'
    reader = CallReader(HERMES, FUNCTIONS)
    assert reader.feed(text) + reader.finish(is_cut=False) == text


def test_text_of_a_format_may_say_what_begins_a_call() -> None:
    """With a format, calls come first or not at all."""
    for name, said in (("hermes", "use <tool_call> for"), ("mistral_3", "write [TOOL_CALLS]get[ARGS] then")):
        text = json.dumps({"n": said})
        for cut in range(1, len(text) + 1):
            reader = CallReader(FORMS[name], FUNCTIONS, at_start=True)
            content = "".join(reader.feed(letter) for letter in text[:cut])
            assert content + reader.finish(is_cut=cut < len(text)) == text[:cut]
            assert not reader.calls
    reader = CallReader(HERMES, FUNCTIONS, at_start=True)
    assert reader.feed(written(HERMES, [("get", "{}"), ("get_all", "{}")])) == ""
    assert [call.name for call in reader.calls] == ["get", "get_all"]


@pytest.mark.parametrize("rest", ["x", '\n{"name": "gone"', "</tool_call>"])
def test_odd_text_behind_calls_is_read_to_its_end(rest: str) -> None:
    """No grammar writes it, and a log may have it."""
    one = written(HERMES, [("get", "{}")])
    reader = CallReader(HERMES, FUNCTIONS)
    reader.feed(f"{one}\n<tool_call>{rest} and {one}")
    assert [call.name for call in reader.calls] == ["get", "get"]


def test_a_call_without_a_tag_is_no_text_behind_white_space() -> None:
    grammar = spec(LLAMA, free=True)
    assert not taken(grammar, '\n {"name": "get", "parameters": {}}')
    assert taken(grammar, '\n {"nam": 1}')


@pytest.mark.parametrize("reference", ["#", "#/properties/a"])
def test_references_within_arguments_are_refused_beside_a_format(reference: str) -> None:
    parameters = json.dumps({"properties": {"a": {"type": "string"}, "b": {"$ref": reference}}})
    asked = tools_spec([("get", parameters, True)], form=LLAMA, free=True, answer=ANSWER)
    with pytest.raises(InvalidGrammar, match="refer to their \\$defs only"):
        compiled(asked)


@pytest.mark.parametrize(("piece", "count"), [("x" * 5, 40_000), ("\n" * 4, 40_000)])
def test_reading_takes_time_in_proportion(piece: str, count: int) -> None:
    reader = CallReader(HERMES, FUNCTIONS)
    reader.feed('<tool_call>\n{"name": "get", "arguments": {"a": "' if piece[0] == "x" else "So")
    began = time.process_time()
    for _ in range(count):
        reader.feed(piece)
    assert time.process_time() - began < 5, "a quarter of a second, and 15 if it copied what it has"
