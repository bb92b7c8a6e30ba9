"""The form of calls is found by what a chat template writes, and history is rendered as it takes it."""

from __future__ import annotations

import json
import re

import pytest
from support.models import call_templates, tokenizers
from support.models.call_templates import OF_JSON
from support.models.spelling import with_words
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.tools import ToolChoice
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_reader import calls_in
from millstream_worker.intake.grammar_request import grammar_of
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
_CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}%s{% endfor %}"
PYTHON = call_templates.of_turns(
    _CALLS.replace("%s", "[{{ f.name }}(a={{ f.arguments | length }})]{{ f.arguments }}")
)
SHORT = call_templates.of_turns(_CALLS.replace("%s", "[{{ f.name }} {{ f.arguments | tojson }}]"))
ODD = call_templates.of_turns(_CALLS.replace("%s", "{{ f.name }} with {{ f.arguments.items() | list }}"))
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


@pytest.mark.parametrize("name", OF_JSON)
def test_a_template_is_written_in_its_own_form(name: str) -> None:
    """What it makes of a history is read as these calls, all of them where it takes several."""
    text = model(OF_JSON[name])
    form = text.call_form
    assert isinstance(text.template.known.call_form, CallForm)
    assert bool(form.joint) == (name != "llama_3")
    given = ['{"a": 1, "b": "x"}', "{}"][: None if form.joint else 1]
    rendered = text.template.render(asked(turn(*given)))
    said = re.sub(', "id": "[a-z0-9]+"', "", rendered[rendered.index("assistant\n") + len("assistant\n") :])
    assert [(one.name, one.arguments) for one in calls_in(said, form, ["get"])] == [
        ("get", one) for one in given
    ]


def test_a_template_without_tools_gets_the_form_of_hermes() -> None:
    text = model(PLAIN)
    assert text.call_form == HERMES
    assert set(text.call_tokens) == {"<tool_call>", "</tool_call>"}
    assert grammar_of(asked(), ThoughtStart.NONE, text, ()) is not None


@pytest.mark.parametrize(("template", "name"), [
    (call_templates.QWEN3_CODER, "Qwen3-Coder's XML"), (call_templates.GLM, "GLM's XML"),
    (PYTHON, "calls in Python, as LFM2"), (ODD, "one unknown here: probe_call with"),
    (SHORT, r"one unknown here: \[probe_call"),
])  # fmt: skip
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
