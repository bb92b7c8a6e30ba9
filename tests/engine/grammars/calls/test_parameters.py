"""Calls with each parameter by itself: what their grammar lets through is read as JSON that fits."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.byte_grammars import compiled, tools_spec

from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.grammars.calls.call_reader import CallReader
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar

QWEN = CallForm(
    begin="<tool_call>\n<function=", middle=">\n", joint="</function>\n</tool_call>\n<tool_call>\n<function=",
    end="</function>\n</tool_call>", key="<parameter=", value=">\n", after="\n</parameter>\n",
)  # fmt: skip
GLM = CallForm(
    begin="<tool_call>", middle="", joint="</tool_call><tool_call>", end="</tool_call>", key="<arg_key>",
    value="</arg_key><arg_value>", after="</arg_value>",
)  # fmt: skip
MINIMAX = CallForm(
    begin='<calls>\n<invoke name="', middle='">\n', joint='</invoke>\n<invoke name="',
    end="</invoke>\n</calls>", key='<parameter name="', value='">', after="</parameter>\n",
)  # fmt: skip
FORMS = {"qwen": QWEN, "glm": GLM, "minimax": MINIMAX}
GET = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["C", "CC", "F"]}, "days": {"type": "integer"},
        "near": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {},
    },
    "required": ["city", "days"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}  # fmt: skip
FUNCTIONS = {"get": json.dumps(GET), "get_all": ""}


@cache
def matcher_of(name: str, form: str) -> Any:
    return compiled(
        tools_spec(
            [(one, text, True) for one, text in FUNCTIONS.items()], form=FORMS[form], free=True, many=True
        )
    )


def written(form: CallForm, calls: list[tuple[str, dict[str, Any]]]) -> str:
    text = ""
    for place, (name, arguments) in enumerate(calls):
        text += (form.joint if place else form.begin) + name + form.middle
        for key, value in arguments.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            text += form.key + key + form.value + shown + form.after
    return text + form.end


TEXT = st.sampled_from(
    ["", "Delft", "a <b", "</param", '{"x": 1}', 'two\nlines "quoted" \\ 🙂', "12", "<arg"]
)
ARGUMENTS = st.fixed_dictionaries({"city": TEXT, "days": st.integers(-5, 99)}).flatmap(
    lambda head: st.tuples(
        st.just(head),
        st.sampled_from([{}, {"near": []}, {"near": [{"x": 1.5}]}]),
        st.sampled_from([{}, {"note": None}, {"note": "none"}, {"note": "12"}]),
        st.sampled_from([{}, {"any": [1, "a"]}, {"any": "text"}, {"any": True}]),
        st.sampled_from([{}, {"unit": "C"}, {"unit": "CC"}]),
    ).map(
        lambda parts: {
            "city": parts[0]["city"],
            **parts[4],
            "days": parts[0]["days"],
            **parts[1],
            **parts[2],
            **parts[3],
        }
    )
)
CALLS = st.lists(
    st.one_of(ARGUMENTS.map(lambda one: ("get", one)), st.just(("get_all", {}))), min_size=1, max_size=3
)


@pytest.mark.parametrize("name", FORMS)
@given(calls=CALLS, size=st.integers(1, 60), said=st.sampled_from(["", "So: "]))
def test_parameters_are_read_as_the_grammar_writes_them(
    name: str, calls: list[tuple[str, dict[str, Any]]], size: int, said: str
) -> None:
    form = FORMS[name]
    text = said + written(form, calls)
    assert matcher_of("free", name).valid(list(text.encode())) == len(text.encode())
    reader, content = CallReader(form, FUNCTIONS), ""
    for place in range(0, len(text), size):
        content += reader.feed(text[place : place + size])
        assert all(call.size == len(call.arguments) for call in reader.calls)
    assert content + reader.finish(is_cut=False) == said.rstrip()
    assert [(call.name, json.loads(call.arguments), call.whole) for call in reader.calls] == [
        (*one, True) for one in calls
    ]


@pytest.mark.parametrize("name", FORMS)
def test_what_does_not_fit_is_not_written(name: str) -> None:
    form = FORMS[name]
    for odd in ({"city": "x"}, {"days": 1}, {"city": "x", "days": "one"}, {"city": "x", "days": 1, "more": 2},
                {"city": "x", "unit": "K", "days": 1}, {"city": "x", "days": 1, "near": [{}]}):  # fmt: skip
        text = written(form, [("get", odd)]).encode()
        assert matcher_of("free", name).valid(list(text)) < len(text)


@pytest.mark.parametrize("name", FORMS)
def test_a_cut_call_is_the_beginning_of_its_json(name: str) -> None:
    call = ("get", {"city": 'De"lft', "days": 12, "note": "n"})
    text = written(FORMS[name], [call])
    whole = json.dumps(call[1], ensure_ascii=False)
    for cut in range(len(text)):
        reader = CallReader(FORMS[name], FUNCTIONS)
        assert reader.feed(text[:cut]) + reader.finish(is_cut=True) in ("", "<")
        assert all(whole.startswith(one.arguments) for one in reader.calls)


@pytest.mark.parametrize(
    "odd",
    [{"type": "string", "pattern": "^a"}, {"type": ["string", "null"], "maxLength": 3},
     {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, {"$ref": "#/properties/b"}],
)  # fmt: skip
def test_bounds_of_text_are_checked_at_the_end_or_refused(odd: dict[str, Any]) -> None:
    parameters = json.dumps({"properties": {"a": odd, "b": {"type": "string", "maxLength": 3}}})
    matcher = compiled(tools_spec([("f", parameters, False)], form=QWEN))
    assert matcher.partial is not None
    assert matcher.consume(list(written(QWEN, [("f", {"a": "other"})]).encode()))
    with pytest.raises(
        InvalidGrammar, match=r"neither bounds of text .*\(the parameters of f, at /properties/a\)"
    ):
        compiled(tools_spec([("f", parameters, True)], form=QWEN))


@pytest.mark.parametrize(
    "schema", [{}, {"additionalProperties": {"type": "integer"}}, {"anyOf": [{"required": ["a"]}]}]
)
def test_parameters_without_names_are_any(schema: dict[str, Any]) -> None:
    matcher = compiled(tools_spec([("f", json.dumps({"type": "object"} | schema), False)], form=GLM))
    text = written(GLM, [("f", {"a": 1, "b": "x", "c": {"d": None}})])
    assert matcher.valid(list(text.encode())) == len(text)
    assert matcher.partial is not None
    reader = CallReader(GLM, {"f": json.dumps(schema)})
    reader.feed(text)
    assert json.loads(reader.calls[0].arguments) == {"a": 1, "b": "x", "c": {"d": None}}
