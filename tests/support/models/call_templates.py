"""Chat templates of our own that write calls of tools in the forms of published ones."""

from __future__ import annotations

_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
_SAID = "{% if m.content %}{{ m.content }}{% endif %}"
_EACH = "{% for call in m.tool_calls or [] %}{% set f = call.function %}"
_BEGUN = "{% if add_generation_prompt %}<s>assistant\n{% endif %}"


def of_turns(calls: str, end: str = "<e>\n") -> str:
    """A template with tools. `calls`: how it writes those of a turn `m`; `end`: of each turn."""
    return f"{_TOOLS}{{% for m in messages %}}<s>{{{{ m.role }}}}\n{_SAID}{calls}{end}{{% endfor %}}{_BEGUN}"


HERMES = of_turns(
    _EACH
    + "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>\n"
    + '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
LLAMA_3 = of_turns(
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endif %}'
)
MISTRAL = of_turns(
    "{% if m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}{% set f = call.function %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}",
    "</s>",
)
MISTRAL_3 = of_turns(_EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}", "</s>")
DEEPSEEK_3 = of_turns(
    "{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls %}{% set f = call.function %}"
    "{% if not loop.first %}{{ '\n' }}{% endif %}"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    "{{ f.name + '\n```json\n' + f.arguments + '\n```' }}<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜>{% endif %}",
    "<｜end▁of▁sentence｜>",
)
DEEPSEEK_3_1 = of_turns(
    "{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls %}{% set f = call.function %}"
    "<｜tool▁call▁begin｜>{{ f.name + '<｜tool▁sep｜>' + f.arguments }}<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜>{% endif %}",
    "<｜end▁of▁sentence｜>",
)
QWEN3_CODER = of_turns(
    _EACH + "{{ '\n' if m.content or not loop.first }}<tool_call>\n<function={{ f.name }}>\n"
    "{% for name, value in f.arguments.items() %}<parameter={{ name }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}"
)
GLM = of_turns(
    _EACH + "\n<tool_call>{{ f.name }}\n{% for name, value in f.arguments.items() %}"
    "<arg_key>{{ name }}</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}"
    "</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
    "",
)
GLM_4_7 = of_turns(
    _EACH + "<tool_call>{{ f.name }}{% for name, value in f.arguments.items() %}<arg_key>{{ name }}</arg_key>"
    "<arg_value>{{ value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>"
    "{% endfor %}",
    "",
)
MINIMAX = of_turns(
    "{% if m.tool_calls %}\n<minimax:tool_call>{% for call in m.tool_calls %}{% set f = call.function %}"
    '\n<invoke name="{{ f.name }}">\n{% for name, value in f.arguments.items() %}'
    '<parameter name="{{ name }}">'
    "{{ value if value is string else value | tojson }}</parameter>\n{% endfor %}</invoke>{% endfor %}"
    "\n</minimax:tool_call>{% endif %}"
)
_ASKED = "<|start|>assistant"
HARMONY = (  # of gpt-oss: a part of a turn for each channel, and the name of a called function before them
    "{% for tool in tools or [] %}<|start|>developer<|message|>{{ tool | tojson }}<|end|>{% endfor %}"
    "{% for m in messages %}{% if m.tool_calls %}"
    f"{{% if m.content %}}{_ASKED}<|channel|>analysis<|message|>{{{{ m.content }}}}<|end|>{{% endif %}}"
    f"{_ASKED} to=functions.{{{{ m.tool_calls[0].function.name }}}}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}"
    f"{{% if m.thinking %}}{_ASKED}<|channel|>analysis<|message|>{{{{ m.thinking }}}}{{% endif %}}"
    "{% if m.content or not m.thinking %}{% if m.thinking %}<|end|>{% endif %}"
    f"{_ASKED}<|channel|>final<|message|>{{{{ m.content }}}}<|end|>{{% endif %}}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}{_ASKED}{{% endif %}}"
)
HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>")
OF_PARAMETERS = {"qwen3_coder": QWEN3_CODER, "glm": GLM, "glm_4_7": GLM_4_7, "minimax": MINIMAX}
OF_JSON = {
    "hermes": HERMES,
    "llama_3": LLAMA_3,
    "mistral": MISTRAL,
    "mistral_3": MISTRAL_3,
    "deepseek_3": DEEPSEEK_3,
    "deepseek_3_1": DEEPSEEK_3_1,
}
