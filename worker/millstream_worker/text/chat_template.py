"""A model's chat template: messages and tools to the text of a prompt.

What a template knows of tools is observed, by rendering a small conversation that calls one. Where it does
not show all of it, the tools are described in the system message and calls are written out, in the form of
Hermes and Qwen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream.wire.messages.tools import CALL_BEGIN, CALL_END, Tool, ToolCall
from millstream_worker.text.render_budget import TemplateTooMuch, size_of
from millstream_worker.text.template_environment import TemplateEnvironment

# Errors of a template on messages it was not written for: its own, or Python's.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip
_MOST_CHARACTERS = 2**20  # of a template; those that are around have up to 50,000
_MESSAGE = 512  # characters of input that a message is counted as, beside its own
_ABOUT_TOOLS = f"""You can call these functions, each described as JSON:
<tools>
%s
</tools>
To call one, write its name and its arguments as JSON between {CALL_BEGIN} and {CALL_END}:
{CALL_BEGIN}
{{"name": <name of the function>, "arguments": <object of its arguments>}}
{CALL_END}"""
_QUESTION = {"role": "user", "content": "probe_question"}
_ANSWER = {"role": "assistant", "content": "probe_answer"}
_TOOL = {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
_SHOWN = {"type": "function", "function": _TOOL}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe_call", "arguments": {"a": 7301}}}
_CALLING = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_OUTCOME = {"role": "tool", "name": "probe_call", "tool_call_id": "call00001", "content": "probe_outcome"}
_OWN_FORM = re.compile(rf'{CALL_BEGIN}\s*{{"name": "probe_call", "arguments": {{"a": 7301}}}}\s*{CALL_END}')

Turn = dict[str, Any]


class ChatTemplate:
    """`tokenizer`: one of transformers'."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment()

    @property
    def exists(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def writes_calls(self) -> bool:
        """It shows calls in the form that the grammar of tools has: so its model writes them by itself."""
        return self._knows_tools and bool(_OWN_FORM.search(self._conversation))

    def check(self) -> None:
        """Renders short conversations. Raises TemplateTooMuch if even these take too much."""
        if self.exists:
            self._try([_QUESTION])
            self._try([_QUESTION, _CALLING, _OUTCOME], [_SHOWN])

    def around_answer(self) -> tuple[str, str, str]:
        """Short texts, as the template writes them: up to an answer that is asked for; up to an answer's text
        in a conversation that goes on; and behind that.
        """
        before, found, behind = self._try([_QUESTION, _ANSWER, _QUESTION]).partition("probe_answer")
        return self._try([_QUESTION]), before if found else "", behind

    def render(self, request: Request) -> str:
        """The text of the request's messages and tools, up to the answer. Raises InvalidRequest."""
        messages, tools = request.messages or (), request.tools or ()
        if not self.exists:
            raise InvalidRequest(
                "messages",
                [message.role for message in messages],
                "this model has no chat template; send a prompt (millstream submit --raw, "
                "/v1/completions), or serve a chat model",
            )
        names = {call.id: call.function.name for message in messages for call in message.tool_calls}
        turns = [self._turn(message, names) for message in messages]
        shown = [_described(tool) for tool in tools]
        if shown and not self._knows_tools:
            turns, shown = self._with_tools(turns, shown), []
        try:
            return self._text(turns, shown, request.chat_template_kwargs or {})
        except TemplateTooMuch as error:
            raise InvalidRequest(
                "messages",
                [turn["role"] for turn in turns],
                f"the model's chat template {error}; send fewer or shorter messages or a prompt, or have the "
                "operator correct the checkpoint's template",
            ) from error
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                "messages",
                [turn["role"] for turn in turns],
                f"the model's chat template refuses these messages: {error}; change their roles or order, or "
                "the chat_template_kwargs",
            ) from error

    def _text(self, turns: Sequence[Turn], tools: Sequence[Turn], kwargs: Mapping[str, Any]) -> str:
        """As transformers' `apply_chat_template`, within a budget."""
        shown = list(tools) or None
        source = self._tokenizer.get_chat_template(None, shown)
        if len(source) > _MOST_CHARACTERS:
            raise TemplateTooMuch(f"has {len(source)} characters itself, more than {_MOST_CHARACTERS}")
        given = {
            **self._tokenizer.special_tokens_map,
            **kwargs,
            "messages": [{name: one for name, one in turn.items() if one is not None} for turn in turns],
            "tools": shown,
            "documents": None,
            "add_generation_prompt": True,
        }
        size = sum(_MESSAGE + len(turn["content"] or "") for turn in turns)
        others = [turn["tool_calls"] for turn in turns if "tool_calls" in turn], shown, kwargs
        text = self._environment.render(source, given, size + size_of(others, sys.maxsize))
        text.encode()  # arguments in JSON may have written half of a surrogate pair, which no tokenizer takes
        return text

    def _turn(self, message: ChatMessage, names: Mapping[str, str]) -> Turn:
        """The message as templates take it: arguments are objects, a tool's output has its name. `names`: of
        called functions, by the calls' ids.
        """
        turn: Turn = {"role": message.role, "content": message.content}
        if message.tool_calls and self._knows_tools:
            turn["tool_calls"] = [_plain(call) for call in message.tool_calls]
            turn["content"] = message.content or None
        elif message.tool_calls:
            written = [_written(call) for call in message.tool_calls]
            turn["content"] = "\n".join([message.content, *written] if message.content else written)
        if message.role == "tool" and not self._takes_outcomes:
            return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
        if message.tool_call_id:
            name = names.get(message.tool_call_id)
            turn |= {"tool_call_id": message.tool_call_id} | ({} if name is None else {"name": name})
        return turn

    def _with_tools(self, turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
        """Described in the system message; in the first one where there may be none."""
        about = _ABOUT_TOOLS % "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        first, *others = turns
        if first["role"] == "system":
            return [{**first, "content": f"{first['content']}\n\n{about}"}, *others]
        system = {"role": "system", "content": "probe_system"}
        if "probe_system" in self._try([system, _QUESTION]):
            return [{"role": "system", "content": about}, *turns]
        return [{**first, "content": f"{about}\n\n{first['content']}"}, *others]

    @cached_property
    def _conversation(self) -> str:
        return self._try([_QUESTION, _CALLING, _OUTCOME], [_SHOWN])

    @property
    def _knows_tools(self) -> bool:
        parts = ("probe_tool", "probe_call", "7301", "probe_outcome")
        return all(part in self._conversation for part in parts)

    @cached_property
    def _takes_outcomes(self) -> bool:
        return self._knows_tools or "probe_outcome" in self._try([_QUESTION, _ANSWER, _OUTCOME])

    def _try(self, turns: Sequence[Turn], tools: Sequence[Turn] = ()) -> str:
        """The rendered text; empty if the template raises an error."""
        try:
            return self._text(turns, tools, {})
        except _TEMPLATE_ERRORS:
            return ""


def _described(tool: Tool) -> Turn:
    parameters = json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _plain(call: ToolCall) -> Turn:
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _written(call: ToolCall) -> str:
    name = json.dumps(call.function.name)
    return f'{CALL_BEGIN}\n{{"name": {name}, "arguments": {call.function.arguments}}}\n{CALL_END}'
