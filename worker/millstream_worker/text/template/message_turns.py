"""Messages and tools of a request as chat templates take them, and what stands for those that a template does
not know: tools are described in the system message and calls are written out, in the form of Hermes and Qwen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from millstream.wire.messages.images import MessagePart
from millstream.wire.messages.job_messages import ChatMessage
from millstream.wire.messages.tools import CALL_BEGIN, CALL_END, Tool, ToolCall
from millstream_worker.text.template.call_probe import Turn, call_of
from millstream_worker.text.template.template_probes import TemplateProbes

IMAGE: Turn = {"type": "image"}  # nothing of the sender's: processors open paths and fetch addresses
_ABOUT_TOOLS = f"""You can call these functions, each described as JSON:
<tools>
%s
</tools>
To call one, write its name and its arguments as JSON between {CALL_BEGIN} and {CALL_END}:
{CALL_BEGIN}
{{"name": <name of the function>, "arguments": <object of its arguments>}}
{CALL_END}"""


def turns_of(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], known: TemplateProbes
) -> tuple[list[Turn], list[Turn]]:
    """The turns and the tools that the template gets. `known`: what it knows."""
    names = {call.id: call.function.name for message in messages for call in message.tool_calls}
    turns = [_turn(message, names, known) for message in messages]
    shown = [_described(tool) for tool in tools]
    if shown and not known.knows_tools:
        turns, shown = _with_tools(turns, shown, known), []
    return [known.in_form(turn) for turn in turns], shown


def _turn(message: ChatMessage, names: Mapping[str, str], known: TemplateProbes) -> Turn:
    """Arguments are objects, an outcome has its name. `names`: of called functions, by the calls' ids."""
    content = [_part(part) for part in message.parts] or message.content
    if message.role == "tool" and not known.takes_outcomes:
        return {"role": "user", "content": _enclosed("<tool_response>\n", content, "\n</tool_response>")}
    turn: Turn = {"role": message.role, "content": content}
    if message.tool_calls and known.knows_tools:
        if not message.content:
            turn = {"role": message.role} | known.calling.content
        turn["tool_calls"] = [_plain(call, known) for call in message.tool_calls]
    elif message.tool_calls:
        written = [_written(call) for call in message.tool_calls]
        turn["content"] = "\n".join([message.content, *written] if message.content else written)
    if message.tool_call_id:
        turn["tool_call_id"] = known.call_id(message.tool_call_id)
    if name := message.name or names.get(message.tool_call_id):
        turn["name"] = name
    if thought := message.reasoning_content:
        turn |= {"reasoning_content": thought, "thinking": thought}  # gpt-oss' name; transformers gives both
    return turn


def _with_tools(turns: Sequence[Turn], tools: Sequence[Turn], known: TemplateProbes) -> list[Turn]:
    """Described in the system message; in the first one where there may be none."""
    about = _ABOUT_TOOLS % "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    first, *others = turns
    if first["role"] == "system":
        return [{**first, "content": _enclosed("", first["content"], f"\n\n{about}")}, *others]
    if known.takes_system:
        return [{"role": "system", "content": about}, *turns]
    return [{**first, "content": _enclosed(f"{about}\n\n", first["content"], "")}, *others]


def _part(part: MessagePart) -> Turn:
    return IMAGE if part.text is None else {"type": "text", "text": part.text}


def _enclosed(before: str, content: Any, behind: str) -> Any:
    """A text, or a list of parts, between two texts."""
    if isinstance(content, str):
        return f"{before}{content}{behind}"
    return [{"type": "text", "text": before}, *content, {"type": "text", "text": behind}]


def _described(tool: Tool) -> Turn:
    parameters = json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _plain(call: ToolCall, known: TemplateProbes) -> Turn:
    """Arguments that a cut answer has left are the text that they are, or the part of an object that there
    is; none at all are those of no names.
    """
    text = call.function.arguments
    try:
        arguments = known.calling.arguments((json.loads(text) if text.strip() else None) or {})
    except (ValueError, RecursionError):
        arguments = text if known.takes_cut_arguments else _begun_object(text)
    return call_of(known.call_id(call.id), call.function.name, arguments)


def _begun_object(text: str) -> object:
    """The part of an object that there is, for templates that take no text in its place."""
    try:
        begun = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return begun if isinstance(begun, dict) else {}


def _written(call: ToolCall) -> str:
    name = json.dumps(call.function.name)
    return f'{CALL_BEGIN}\n{{"name": {name}, "arguments": {call.function.arguments}}}\n{CALL_END}'
