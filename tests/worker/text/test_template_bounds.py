"""Templates that never end, or make no end of text: refused with the checkpoint, or with the request. All
others give what transformers gives."""

from __future__ import annotations

from pathlib import Path
from time import thread_time

import pytest
from support.models import tokenizers
from support.models.spelling import CALLING_TEMPLATE
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream_worker.text.chat_template import ChatTemplate
from millstream_worker.text.model import TextModel, TokenizerUnusable
from millstream_worker.text.template import render_budget

TWO_PARTS = "{% set ns = namespace(x='a') %}{% for i in range(40) %}"
ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "loops without output": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops of a list": "{% for a in l %}{% for b in l %}{% for c in l %}{% for d in l %}{% for e in l %}"
    "{% for f in l %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
    "a loop in itself": "{% for i in range(9) recursive %}{{ loop(range(9)) if loop.depth < 90 }}"
    "{% endfor %}",
    "a macro in itself": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(90) }}",
    "text of a loop": "{% for i in range(99999) %}" + "long " * 2000 + "{% endfor %}",
    "a text often": "{{ 'a' * 10**10 }}",
    "a list often": "{{ ([1] * 10**10) | length }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a power of powers": "{% set x = 9 ** 999 %}{{ (x * x) * (x * x) }}",
    "two halves joined": TWO_PARTS + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "two halves added": TWO_PARTS + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "two halves in a block": TWO_PARTS
    + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "a list of one list": TWO_PARTS + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "such a list as JSON": TWO_PARTS + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "a width": "{{ '%999999999d' % 1 }}",
    "a width from a value": "{{ '%*d' % (10**9, 1) }}",
    "a width by a filter": "{{ '%999999999d' | format(1) }}",
    "a width of format": "{{ '{:999999999}'.format(1) }}",
    "a width of format by value": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "a method that pads": "{{ 'a'.ljust(10**10) }}",
    "a filter that pads": "{{ 'a' | center(10**10) }}",
    "a filter of a filter": "{{ range(99999) | map('center', 99999) | join }}",
    "an indent": "{{ {'a': 1} | tojson(indent=10**9) }}",
    "replacements": TWO_PARTS + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}{{ ns.x }}",
    "a join": "{% set x = 'a' * 99999 %}{{ x.join(x) }}",
    "a round number": "{{ 1.5 | round(10**9, 'floor') }}",
}
HIDDEN = (
    "{% set l = range(90) | list %}{% if messages[0].content == 'go' %}%s{% endif %}{{ messages[0].content }}"
)
ALIKE = {  # constructs of templates that are around
    "calls": CALLING_TEMPLATE,
    "loop variables": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}"
    "{{ loop.last }}"
    "{{ loop.previtem.role if not loop.first }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "filtered": "{% for m in messages if m.role != 'user' %}{{ loop.revindex }}{{ m.role }}{% else %}none"
    "{% endfor %}"
    "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.length }}{% endfor %}",
    "methods": "{% for m in messages %}{{ m.content.split('i', maxsplit=1)[0].ljust(4) }}{{ m.get('role') }}"
    "{{ m.content.replace('h', 'gh') }}{{ '{:>3}'.format(loop.index) }}{{ m.content.startswith('h') }}"
    "{{ ', '.join(m.keys()) }}{% for k, v in m.items() %}{{ k ~ v.encode().hex() }}{% endfor %}{% endfor %}",
    "reversed": "{% for m in messages[::-1] %}{{ m.role | upper ~ loop.index0 ~ m.missing }}{% endfor %}",
    "breaks": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "long": "{% for i in range(1000) %}{% if loop.last %}{{ loop.length }}{% endif %}{% endfor %}",
    "a namespace": "{% set ns = namespace(text='', n=0) %}{% for m in messages %}"
    "{% set ns.text = ns.text + (m.content or '') + '\\n' %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.text }}{{ ns.n }}",
    "macros": "{% macro one(m, deep) %}{{ m.role }}{% if deep %}{{ one(m, deep - 1) }}{% endif %}"
    "{% endmacro %}{% for m in messages %}{{ one(m, 3) }}{% endfor %}"
    "{% macro two() %}<{{ caller() }}>{% endmacro %}{% call two() %}x{% endcall %}",
    "recursive": "{% for i in [[1, [2]], 3] recursive %}{{ loop.depth }}"
    "{{ loop(i) if i is iterable and i is not string else i }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}\n{% endgeneration %}{% endfor %}",
    "strings": "{{ messages[0].content.replace('h', 'gh').split('i') }}{{ '-'.join(['a', 'b']) }}"
    "{{ ['a', 'b'] | join(', ') }}{{ '%s %05d' % ('a', 3) }}{{ '{} {:>4}'.format('a', 3) }}"
    "{{ '{{\"name\": \"{}\"}}'.format('a') }}{{ '**%s** 5%%' % 'a' }}{{ 'ab' | center(6) }}{{ ' a ' | trim }}"
    "{{ 'ab' | replace('a', 'c') }}{{ 'x' | indent(2, true) }}{{ 3 * 'ab' }}{{ 7 % 3 }}{{ 2 ** 9 }}",
    "values": "{{ dict(a=1) }}{{ dict.fromkeys(['k']) }}{{ {'b': '<', 'a': 'é'} | tojson }}"
    "{{ [1] | tojson(indent=2) }}{{ {'a': 1} | items | list }}{{ {'b': 1, 'a': 2} | dictsort }}"
    "{{ [3, 1] | sort }}{{ [1, 2] | sum }}"
    "{{ ['a', 'a'] | unique | list }}{{ none }}{{ 1.5 | round }}{{ bos_token }}{{ eos_token }}",
    "blocks": "{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ x | length }}{{ x }}"
    "{% filter upper %}a{% endfilter %}{% block b %}c{% endblock %}",
}  # fmt: skip
TURNS = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "A"},
]


def fast(text: str) -> PreTrainedTokenizerFast:
    built = tokenizers.build("byte-level")
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<end>", chat_template=text)


def asked(content: str) -> Request:
    return Request(messages=(ChatMessage(role="user", content=content),))


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_budget, "CPU_S", 0.1)


@pytest.mark.usefixtures("short_time")
@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_rendering_fails_its_request_alone(name: str) -> None:
    template = ChatTemplate(fast(HIDDEN.replace("%s", ENDLESS[name])))
    template.check()
    with pytest.raises(
        InvalidRequest, match=r"^messages: the model's chat template (takes|makes|pads|computes) "
    ):
        template.render(asked("go"))
    assert template.render(asked("hi")) == "hi", "it serves on"


@pytest.mark.usefixtures("short_time")
def test_a_template_that_never_ends_is_refused_by_its_folder(tmp_path: Path) -> None:
    fast(ENDLESS["nested loops"]).save_pretrained(tmp_path)
    with pytest.raises(
        TokenizerUnusable, match=rf"chat template in {tmp_path} takes too long.*correct chat_templ"
    ):
        TextModel.load(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("a" * (2**20 + 1))
    with pytest.raises(TokenizerUnusable, match=r"has 1048577 characters itself"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize("name", ALIKE)
def test_templates_give_what_transformers_gives(name: str) -> None:
    tokenizer = fast(ALIKE[name])
    wanted = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, tokenize=False)
    request = Request.model_validate({"messages": TURNS})
    assert ChatTemplate(tokenizer).render(request) == wanted


def test_a_long_conversation_is_within_the_budget() -> None:
    turns = [{"role": "user", "content": f"{place} " * 100} for place in range(1500)]
    text = ChatTemplate(fast(ALIKE["a namespace"])).render(Request.model_validate({"messages": turns}))
    assert text.startswith("0 0 ")
    assert text.endswith("\n1500")


def test_outcomes_find_their_calls_at_once() -> None:
    calls = [{"id": f"c{n}", "function": {"name": f"f{n}", "arguments": "{}"}} for n in range(20_000)]
    outcomes = [{"role": "tool", "tool_call_id": f"c{n}", "content": ""} for n in range(0, 20_000, 10)]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}, *outcomes]
    template = ChatTemplate(fast(CALLING_TEMPLATE + "{{ messages[-1].name }}"))
    before_s = thread_time()
    assert template.render(Request.model_validate({"messages": messages})).endswith("f19990")
    assert thread_time() - before_s < 4  # comparing each with each took 10
