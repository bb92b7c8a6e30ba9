"""Tools, the choice among them, and formats of answers."""

from __future__ import annotations

from typing import Any

from conformance.requests.rows import BOTH, CHAT, COMPLETIONS, NOBODY, OPENAI, VLLM, on_both, rows
from conformance.requests.sampling_rows import DEFAULT

OBJECT = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 5}}, "required": ["word"],
          "additionalProperties": False}  # fmt: skip
NAMES = {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}
SET = {
    "type": "object",
    "properties": {
        "words": {
            "type": "array",
            "items": {"type": "string", "maxLength": 5},
            "maxItems": 3,
            "uniqueItems": True,
        }
    },
}
LONG = {"max_tokens": 60}
ALWAYS = "a schema is always followed"


def tool(*, more: dict[str, Any] | None = None, **function: Any) -> dict[str, Any]:
    known = {"name": "look_up", "description": "Looks a word up.", "parameters": OBJECT}
    return {"type": "function", "function": known | function, **(more or {})}


def schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": OBJECT} | more}


TOOL = {"tools": [tool()]}
TWO = {"tools": [tool(), tool(name="say")]}
NAMED = {"type": "function", "function": {"name": "look_up"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
TAGS = '{"type": "structural_tag", "structures": [], "triggers": []}'
PLAIN = {"type": "function", "function": {"name": "tick"}}

TOOLS = (
    *rows(CHAT, BOTH, {"tools": [tool()], "tools two": TWO["tools"]}),
    *rows(CHAT, BOTH, {"tools without parameters": [PLAIN], "tools of no properties": [tool(
        parameters={"type": "object", "properties": {}})]}),
    *rows(CHAT, NOBODY, {"tools of none": []}, holds=DEFAULT),
    *rows(CHAT, BOTH, {"tools[0].function.strict": [tool(strict=True)]}),
    *rows(CHAT, BOTH, {"tools[0].function.strict false": [tool(strict=False)]}, holds=DEFAULT),
    *rows(CHAT, BOTH, {"tools[0].function.strict null": [tool(strict=None)]}, holds=DEFAULT),
    *rows(CHAT, BOTH, {"tools[0].function.strict beyond grammars": [tool(strict=True, parameters=SET)]},
          {"tool_choice": "required"}),
    *rows(CHAT, BOTH, {"tools[0].function.parameters with propertyNames": [tool(parameters=NAMES)],
                       "tools[0].function.parameters with uniqueItems": [tool(parameters=SET)]},
          LONG | {"tool_choice": "required"}),
    *rows(CHAT, BOTH, {"tools[0].function.description": [tool()]}),
    *rows(CHAT, VLLM, {"tools[0].cache_control": [tool(more={"cache_control": {"type": "ephemeral"}})]}),
    *rows(CHAT, VLLM, {"tools[0].defer_loading": [tool(more={"defer_loading": True})]}),
    *rows(CHAT, VLLM, {"tools[0].function.returns": [tool(returns={"type": "string"})]}),
    *rows(CHAT, VLLM, {"tools with a dotted name": [tool(name="words.look_up")]}),
    *rows(CHAT, VLLM, {"tools with a name of 70 letters": [tool(name="n" * 70)]}),
    *rows(CHAT, OPENAI, {"tools of grammars": [{"type": "custom", "custom": {"name": "write"}}]}),
    *rows(CHAT, BOTH, {"tool_choice none": "none"}, TOOL),
    *rows(CHAT, BOTH, {"tool_choice auto": "auto"}, TOOL, DEFAULT),
    *rows(CHAT, BOTH, {"tool_choice required": "required", "tool_choice named": NAMED}, TOOL | LONG),
    *rows(CHAT, BOTH, {"tool_choice required, streamed": "required"}, TOOL | LONG | {"stream": True}),
    *rows(CHAT, BOTH, {"tool_choice required of two": "required"}, TWO | LONG),
    *rows(CHAT, OPENAI, {"tool_choice of allowed ones": ALLOWED}, TOOL),
    *rows(CHAT, NOBODY, {"tool_choice without tools": "auto", "tool_choice none without tools": "none"},
          holds="there is nothing to choose"),
    *rows(CHAT, BOTH, {"parallel_tool_calls false": False}, TOOL),
    *rows(CHAT, BOTH, {"parallel_tool_calls": True}, TOOL, DEFAULT),
    *rows(CHAT, VLLM, {"parallel_tool_calls without tools": True}, holds="there is nothing to call"),
    *rows(CHAT, OPENAI, {"functions": [tool()["function"]], "function_call named": {"name": "look_up"}}),
    *rows(CHAT, OPENAI, {"functions of none": [], "function_call none": "none"}, holds=DEFAULT),
)  # fmt: skip

FORMATS = (
    *rows(CHAT, BOTH, {"response_format text": {"type": "text"}}, holds=DEFAULT),
    *rows(CHAT, BOTH, {"response_format json_object": {"type": "json_object"}}, LONG),
    *rows(CHAT, BOTH, {"response_format json_schema": schema()}, LONG),
    *rows(CHAT, BOTH, {"response_format json_schema, streamed": schema()}, LONG | {"stream": True}),
    *rows(CHAT, BOTH, {"response_format.json_schema.strict": schema(strict=True)}, LONG, ALWAYS),
    *rows(CHAT, BOTH, {"response_format.json_schema.strict false": schema(strict=False)}, LONG, ALWAYS),
    *rows(CHAT, BOTH, {"response_format with propertyNames": schema(schema=NAMES)}, LONG),
    *rows(CHAT, BOTH, {"response_format with uniqueItems": schema(schema=SET)}, LONG),
    *rows(CHAT, BOTH, {"response_format with a description": schema(description="A word.")}, LONG),
    *rows(CHAT, BOTH, {"response_format with tools": schema()}, TOOL | LONG),
    *rows(CHAT, BOTH, {"response_format with tools, none chosen": schema()},
          TOOL | LONG | {"tool_choice": "none"}),
    *rows(CHAT, VLLM, {"response_format structural_tag": {
        "type": "structural_tag", "structures": [{"begin": "<a>", "schema": OBJECT, "end": "</a>"}],
        "triggers": ["<a>"]}}, LONG),
    *rows(COMPLETIONS, VLLM, {"response_format json_object": {"type": "json_object"}}, LONG),
    *rows(COMPLETIONS, VLLM, {"response_format json_schema": schema()}, LONG),
    *on_both(VLLM, {"structured_outputs json": {"json": OBJECT}}, LONG),
    *on_both(VLLM, {"structured_outputs regex": {"regex": "[ab]{2}"}}, LONG),
    *on_both(VLLM, {"structured_outputs choice": {"choice": ["a", "b"]}}, LONG),
    *on_both(VLLM, {"structured_outputs grammar": {"grammar": 'root ::= "a" | "b"'}}, LONG),
    *on_both(VLLM, {"structured_outputs json_object": {"json_object": True}}, LONG),
    *on_both(VLLM, {"structured_outputs.disable_any_whitespace": {
        "json": OBJECT, "disable_any_whitespace": True}}, LONG),
    *on_both(VLLM, {"structured_outputs.whitespace_pattern": {
        "json": OBJECT, "whitespace_pattern": " ?"}}, LONG),
    *on_both(VLLM, {"structured_outputs.disable_additional_properties": {
        "json": OBJECT, "disable_additional_properties": True}}, LONG),
    *on_both(VLLM, {"structured_outputs structural_tag": {"structural_tag": TAGS}}, LONG),
)  # fmt: skip
