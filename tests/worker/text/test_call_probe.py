"""The form of calls is found by what a chat template writes, and history is rendered as it takes it."""

from __future__ import annotations

import json
import re

import pytest
from support.models import call_templates, tokenizers
from support.models.call_templates import OF_JSON, OF_PARAMETERS
from support.models.spelling import with_words
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.tools import ToolChoice
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_reader import calls_in
from millstream_worker.intake.preparation.grammar_request import grammar_of
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
_CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}%s{% endfor %}"


def writes(call: str, **more: str) -> str:
    """A template that writes each call so."""
    return call_templates.of_turns(_CALLS.replace("%s", call), **more)


_JSON = "{{ f.arguments | tojson }}"
REFUSED = {  # templates, and what the refusal says of the form
    writes("[{{ f.name }}(a={{ f.arguments | length }})]{{ f.arguments }}"): "calls in Python, as LFM2",
    writes(f"<|channel|>commentary to=functions.{{{{ f.name }}}} json<|message|>{_JSON}<|call|>"): "harmony",
    writes(f"<|tool_call_begin|>{{{{ c.id }}}}{{{{ f.name }}}}<|tool_call_argument_begin|>{_JSON}"): "Kimi's",
    writes("{{ f.name }} with {{ f.arguments.items() | list }}"): "one unknown here: probe_call with",
    writes(f"[{{{{ f.name }}}} {_JSON}]"): r"one unknown here: \[probe_call",
    writes(f"<thinking></thinking><call>{{{{ f.name }}}} {_JSON}</call>"): "one unknown here: <thinking>",
    writes(f"<call>{{{{ f.name }}}} {_JSON}{{{{ loop.index }}}}</call>"): "one unknown here: <call>",
    writes(
        f"<call>{{{{ f.name }}}} {_JSON}<eom>", end="{% if not m.tool_calls %}<eot>{% endif %}"
    ): "one unknown here",
    "{% if messages[-1].content == 'probe_answer' %}{{ raise_exception('no') }}{% endif %}"
    + writes(f"<call>{{{{ f.name }}}} {_JSON}</call>"): "one unknown here",
}
GET = {"name": "get", "parameters": '{"type": "object", "properties": {"a": {}, "b": {}}}'}
LONG_ID = "call_0123456789abcdef01234567"


def model(template: str) -> TextModel:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=with_words(tokenizers.build("byte-level")))
    tokenizer.chat_template = template
    return TextModel(tokenizer)


def asked(*turns: dict[str, object]) -> Request:
    messages = [{"role": "user", "content": "x"}, *turns]
    return Request.model_validate({"messages": messages, "tools": [GET]})


def turn(*arguments: str) -> dict[str, object]:
    calls = [{"id": LONG_ID, "function": {"name": "get", "arguments": one}} for one in arguments]
    return {"role": "assistant", "content": "", "tool_calls": calls}


FORMS = OF_JSON | OF_PARAMETERS


@pytest.mark.parametrize("name", FORMS)
def test_a_template_is_written_in_its_own_form(name: str) -> None:
    """What it makes of a history is read as these calls, all of them where it takes several."""
    text = model(FORMS[name])
    form = text.call_form
    assert isinstance(text.template.known.call_form, CallForm)
    assert bool(form.joint) == (name != "llama_3")
    given = ['{"a": 1, "b": "x"}', "{}"][: None if form.joint else 1]
    rendered = text.template.render(asked(turn(*given)))
    said = re.sub(', "id": "[a-z0-9]+"', "", rendered[rendered.index("assistant\n") + len("assistant\n") :])
    assert [(one.name, one.arguments) for one in calls_in(said, form, {"get": GET["parameters"]})] == [
        ("get", one) for one in given
    ]


def test_a_template_without_tools_gets_the_form_of_hermes() -> None:
    text = model(PLAIN)
    assert text.call_form == HERMES
    assert set(text.call_tokens) == {"<tool_call>", "</tool_call>"}
    assert grammar_of(asked(), ThoughtStart.NONE, text, ()) is not None


@pytest.mark.parametrize(("template", "name"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_form_that_is_not_built_is_refused_by_its_name(template: str, name: str) -> None:
    text = model(template)
    with pytest.raises(InvalidRequest, match=rf'^tool_choice: .*not built here \({name}.*choose "required"'):
        grammar_of(asked(), ThoughtStart.NONE, text, ())
    required = asked().model_copy(update={"tool_choice": ToolChoice(type="required")})
    spec = grammar_of(required, ThoughtStart.NONE, text, ())
    assert spec is not None
    assert json.loads(spec.text)["form"]["begin"] == HERMES.begin


def test_ids_are_nine_characters_where_a_template_wants_that() -> None:
    outcome = {"role": "tool", "content": "7", "tool_call_id": LONG_ID}
    short = model(call_templates.MISTRAL).template
    [call_id] = {short.known.call_id(LONG_ID)}
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert f'"id": "{call_id}"' in short.render(asked(turn("{}"), outcome))
    assert model(call_templates.HERMES).template.known.call_id(LONG_ID) == LONG_ID


@pytest.mark.parametrize(("given", "shown"), [
    ("", "{}"), ("null", "{}"), ('{"a": 1}', '{"a": 1}'), ('{"a":', '"{\\"a\\":"'), ("[1]", "[1]"),
])  # fmt: skip
def test_arguments_of_earlier_calls_are_rendered_as_meant(given: str, shown: str) -> None:
    """None at all, and those of a cut answer, too."""
    rendered = model(call_templates.HERMES).template.render(asked(turn(given)))
    assert f'"arguments": {shown}}}' in rendered


@pytest.mark.parametrize(("given", "shown"), [
    ('{"a": "x", "b": "he', ["<parameter=a>\nx\n", "<parameter=b>\nhe\n"]),
    ('{"a": 1, "b', ["<parameter=a>\n1\n"]),
    ("{", []), ("nonsense", []),
])  # fmt: skip
def test_cut_arguments_are_what_there_is_of_an_object(given: str, shown: list[str]) -> None:
    """For a template that takes them apart."""
    rendered = model(call_templates.QWEN3_CODER).template.render(asked(turn(given)))
    assert rendered.count("<parameter=") == len(shown)
    assert all(part in rendered for part in shown)


def test_absent_arguments_are_given_as_the_template_takes_them() -> None:
    """This one takes text."""
    rendered = model(call_templates.DEEPSEEK_3_1).template.render(asked(turn("")))
    assert "get<｜tool▁sep｜>{}<｜tool▁call▁end｜>" in rendered


@pytest.mark.parametrize(
    "more", [{"whitespace_pattern": " *"}, {"compact": True}, {"type": "regex", "text": "a"}]
)
def test_a_format_is_told_from_a_call_or_refused(more: dict[str, object]) -> None:
    form = {"type": "json_schema", "text": '{"type": "object"}'}
    refused = asked().model_copy(update={"response_format": ResponseFormat.model_validate(form | more)})
    with pytest.raises(InvalidRequest, match=r"^response_format: .*no tag"):
        grammar_of(refused, ThoughtStart.NONE, model(call_templates.LLAMA_3), ())
    for template in (call_templates.HERMES, call_templates.MISTRAL):
        assert grammar_of(refused, ThoughtStart.NONE, model(template), ()) is not None
    taken = asked().model_copy(update={"response_format": ResponseFormat.model_validate(form)})
    assert grammar_of(taken, ThoughtStart.NONE, model(call_templates.LLAMA_3), ()) is not None
