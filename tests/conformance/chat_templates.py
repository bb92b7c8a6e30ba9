"""Chat templates of the tiny model."""

from __future__ import annotations

# As Qwen's: it knows tools, and writes calls between <tool_call> and </tool_call>.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% for message in messages %}"
    "{{ message.role }}{{ '\n' }}{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n"
    "</think>\n{% endif %}{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<end>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{{ '\n' }}{% endif %}"
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
# Of all tools' schemas the prompt would be longer than the context.
TEMPLATE_OF_NAMES = TEMPLATE.replace("tool | tojson", "tool.function.name")
