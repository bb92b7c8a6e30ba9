"""Tools and calls in a prompt: as the model's template has them, or written out where it has none."""

from __future__ import annotations

import json

from support.models import tokenizers
from support.models.spelling import CALLING_TEMPLATE
from transformers import PreTrainedTokenizerFast

from millstream.wire.messages.job_messages import Request
from millstream_worker.text.chat_template import ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = (  # as Gemma's and others'
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no ' + m.role) }}"
    "{% endif %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
)
LLAMA = (  # knows tools in a form of its own
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ {'name': c.function.name, 'parameters': "
    "c.function.arguments} | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TOOLS = [
    {"name": "get", "description": "Get it.", "parameters": '{"type":"object","properties":{"b":{},"a":{}}}'}
]
CALL = {"id": "c1", "function": {"name": "get", "arguments": '{"b": 1}'}}
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "seven"},
]
WRITTEN = '<tool_call>\n{"name": "get", "arguments": {"b": 1}}\n</tool_call>'


def template(text: str) -> ChatTemplate:
    return ChatTemplate(
        PreTrainedTokenizerFast(tokenizer_object=tokenizers.build("byte-level"), chat_template=text)
    )


def rendered(text: str, **fields: object) -> str:
    return template(text).render(Request.model_validate({"messages": TURNS, "tools": TOOLS} | fields))


def test_a_template_with_tools_gets_them_as_in_transformers() -> None:
    text = rendered(CALLING_TEMPLATE)
    tool, *turns = text.splitlines()
    assert json.loads(tool)["function"]["parameters"]["properties"] == {"b": {}, "a": {}}
    assert turns[1:4] == f"assistant: {WRITTEN}".splitlines()
    assert turns[4] == "tool: seven"
    named = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[-1].name }}"
    assert rendered(CALLING_TEMPLATE + named).endswith("get")
    assert rendered(LLAMA) == 'get <user>hi<assistant>{"name": "get", "parameters": {"b": 1}}<tool>seven'


def test_others_get_tools_as_a_system_message_and_calls_as_text() -> None:
    system, *turns = rendered(CHATML).split("<|user|>")
    assert system.startswith("<|system|>You can call these functions")
    assert '{"name": "get", "description": "Get it."' in system
    assert turns == [f"hi\n<|assistant|>{WRITTEN}\n<|tool|>seven\n<|assistant|>"]
    brief = [{"role": "system", "content": "Be brief."}, TURNS[0]]
    assert rendered(CHATML, messages=brief).startswith("<|system|>Be brief.\n\nYou can call these functions")


def test_a_template_that_refuses_roles_gets_them_as_user_text() -> None:
    text = rendered(STRICT)
    assert text.startswith("<user>You can call these functions")
    assert text.endswith(
        f"</tool_call>\n\nhi<assistant>{WRITTEN}<user><tool_response>\nseven\n</tool_response>"
    )


def test_messages_without_tools_are_rendered_as_before() -> None:
    plain = [{"role": "user", "content": "hi"}]
    assert rendered(CHATML, messages=plain, tools=None) == "<|user|>hi\n<|assistant|>"
