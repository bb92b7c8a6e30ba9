"""What templates know is found out by rendering, and what messages say reaches them in their own form."""

from __future__ import annotations

from typing import Any

import pytest
from support.models import tokenizers
from support.models.spelling import CALLING_TEMPLATE
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ReasoningEffort, Request
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.text.chat_template import ChatTemplate

CALLS = CALLING_TEMPLATE[CALLING_TEMPLATE.index("{% for call in") :]
HEAD = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for message in messages %}{{ message.role }}: "
)
TEXTS_ONLY = HEAD + "{{ message.content.split('</think>')[-1] }}" + CALLS  # as QwQ's
NULL_ONLY = (
    HEAD
    + "{% if message.content is not none %}{{ message.content }}{% else %}"
    + CALLS.replace("{% endfor %}{{ '\n' }}", "{% endfor %}{% endif %}{{ '\n' }}", 1)
)  # as DeepSeek's
PARTS_ONLY = HEAD + "{% for part in message.content or [] %}{{ part.text }}{% endfor %}" + CALLS
MIXED = (  # a system message as a text, all others in parts
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n' }}{% else %}"
    "{% for part in m.content %}{{ m.role }}: {{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
EFFORT = PLAIN + " Reasoning: {{ reasoning_effort or 'medium' }}"
STRICT_EFFORT = PLAIN + (
    "{% if (reasoning_effort or 'low') not in ['low', 'high'] %}{{ raise_exception('no') }}{% endif %}"
    "{{ reasoning_effort }}"
)
ONE_EFFORT = PLAIN + "{% if reasoning_effort == 'high' %} Think hard.{% endif %}"
SWITCH = PLAIN + "{% if enable_thinking is defined and not enable_thinking %} quick{% endif %}"
OFF_SWITCH = PLAIN + "{% if thinking %} slow{% endif %}"  # as DeepSeek V3.1's
BOTH = EFFORT + "{% if enable_thinking is defined and not enable_thinking %} quick{% endif %}"
TOOL = {"name": "wind"}
CALL = {"id": "c1", "function": {"name": "wind", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
USER = {"role": "user", "content": "x"}
WRITTEN = '<tool_call>\n{"name": "wind", "arguments": {}}\n</tool_call>'


def template(text: str) -> ChatTemplate:
    built = tokenizers.build("byte-level")
    return ChatTemplate(PreTrainedTokenizerFast(tokenizer_object=built, chat_template=text))


def rendered(text: str, *messages: dict[str, Any], thinks: bool = False, **fields: object) -> str:
    request = Request.model_validate({"messages": messages or [USER]} | fields)
    return template(text).render(request, thinks=thinks)


@pytest.mark.parametrize("text", [TEXTS_ONLY, NULL_ONLY, PARTS_ONLY, CALLING_TEMPLATE])
def test_tools_are_known_whatever_no_content_is(text: str) -> None:
    form = template(text).known.call_form
    assert isinstance(form, CallForm)
    assert (form.begin, form.middle, form.end) == (HERMES.begin, HERMES.middle, HERMES.end)
    outcome = {"role": "tool", "tool_call_id": "c1", "content": "7"}
    _, said = rendered(text, USER, CALLING, outcome, tools=[TOOL]).split("user: x\n")
    assert said.startswith(f"assistant: {WRITTEN}\ntool: 7")
    assert rendered(text, USER, CALLING | {"content": ""}, outcome, tools=[TOOL]).endswith(said)


def test_a_thought_beside_a_call_is_what_a_template_shows_more() -> None:
    shows = (
        "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n{% endif %}"
    )
    text = HEAD + shows + "{% if message.content %}{{ message.content }}{% endif %}" + CALLS
    thinking = CALLING | {"reasoning_content": "I look at the map"}
    more, less = (rendered(text, USER, turn, tools=[TOOL]) for turn in (thinking, CALLING))
    assert more.replace("<think>\nI look at the map\n</think>\n", "") == less


def test_texts_are_parts_for_the_roles_that_need_them() -> None:
    system = {"role": "system", "content": "be"}
    assert rendered(MIXED, system, USER, {"role": "assistant", "content": "A"}) == "be\nuser: xassistant: A"
    assert rendered(PARTS_ONLY, system, USER).startswith("system: be\nuser: x\n")
    taking_both = "{% for m in messages %}{{ m.content if m.content is string else 'parts' }}{% endfor %}"
    assert rendered(taking_both) == "x"


def test_names_and_thoughts_reach_the_template() -> None:
    text = "{% for m in messages %}{{ m.name }}/{{ m.reasoning_content }}/{{ m.thinking }};{% endfor %}"
    thinking = {"role": "assistant", "content": "A", "reasoning_content": "Hm"}
    assert rendered(text, USER | {"name": "Ann"}, thinking) == "Ann//;/Hm/Hm;"
    named = {"role": "tool", "content": "7", "name": "other", "tool_call_id": "c1"}
    assert rendered(CALLING_TEMPLATE + "{{ messages[-1].name }}", USER, CALLING, named).endswith("other")


@pytest.mark.parametrize(
    ("text", "effort", "end"),
    [
        (EFFORT, "high", "x Reasoning: high"), (EFFORT, "none", "x Reasoning: none"),
        (STRICT_EFFORT, "high", "xhigh"), (ONE_EFFORT, "high", "x Think hard."),
        (ONE_EFFORT, "medium", "x"), (SWITCH, "none", "x quick"), (SWITCH, "low", "x"),
        (OFF_SWITCH, "minimal", "x slow"), (OFF_SWITCH, "none", "x"),
        (BOTH, "none", "x Reasoning: none quick"), (PLAIN, "none", "x"),
    ],
)  # fmt: skip
def test_an_effort_is_told_in_the_templates_words(text: str, effort: str, end: str) -> None:
    assert rendered(text, reasoning_effort=ReasoningEffort(effort)) == end


@pytest.mark.parametrize(
    ("text", "effort", "problem"),
    [
        (PLAIN, "high", "knows neither it nor enable_thinking"),
        (STRICT_EFFORT, "medium", "takes low, high; choose one"),
        (STRICT_EFFORT, "none", "takes low, high; choose one"),
        (ONE_EFFORT, "low", "takes medium, high; choose one"),
        (ONE_EFFORT, "none", "takes medium, high; choose one"),
    ],
)
def test_an_effort_that_no_template_knows_is_refused(text: str, effort: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^reasoning_effort: .*{problem}"):
        rendered(text, reasoning_effort=ReasoningEffort(effort))


def test_none_is_refused_where_the_model_always_thinks() -> None:
    with pytest.raises(InvalidRequest, match=r"^reasoning_effort: .*knows neither"):
        rendered(PLAIN, reasoning_effort=ReasoningEffort.NONE, thinks=True)


def test_an_effort_agrees_with_the_templates_own_values() -> None:
    high = ReasoningEffort.HIGH
    kwargs = {"reasoning_effort": "high"}
    assert rendered(EFFORT, reasoning_effort=high, chat_template_kwargs=kwargs) == "x Reasoning: high"
    for text, other in ((EFFORT, {"reasoning_effort": "low"}), (SWITCH, {"enable_thinking": False})):
        with pytest.raises(
            InvalidRequest, match=rf"^reasoning_effort: .*chat_template_kwargs\.{next(iter(other))}"
        ):
            rendered(text, reasoning_effort=high, chat_template_kwargs=other)
