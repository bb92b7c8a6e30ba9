"""The functions that a request offers to the model, which of them it must call, and the calls of an answer.
Fields have OpenAI's names, except that a schema travels as its JSON text: its key order is the answer's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, StringConstraints, model_validator

from millstream.wire.messages.bounds.depth import MAX_DEPTH, is_deeper_json
from millstream.wire.messages.codec import Message
from millstream.wire.messages.response_format import MAX_BYTES, problem_of_schema
from millstream.wire.messages.validation_errors import WrongField

MAX_TOOLS = 128
MAX_BRACKETS = 2**16  # that open a list or an object, in the arguments of one call
_COUNT = f"must be 1 to {MAX_TOOLS} functions; leave tools out for none"
# around each call that a template without tools is told of
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
# of each call that workers of version 0.2.0 leave in an answer's text
CALL_HEAD = f'{CALL_BEGIN}\n{{"name": "'

ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
_EARLY_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # all that workers took before message version 5


class Tool(Message):
    """A function. `parameters` is the JSON text of a schema of type object; empty: it takes none. `strict`:
    the request is refused if no grammar keeps all of that; else a call may turn out not to fit, and says so.
    """

    name: ToolName
    description: Annotated[str, StringConstraints(max_length=MAX_BYTES)] = ""
    parameters: Annotated[str, StringConstraints(max_length=MAX_BYTES)] = ""
    strict: bool = False

    @model_validator(mode="after")
    def _is_an_object(self) -> Self:
        if problem := self.parameters and _problem_of_parameters(self.parameters):
            raise WrongField("parameters", self.parameters, problem)
        return self


class ToolChoice(Message):
    """`auto`: the model may call; `required`: it must; `none`: it may not; `function`: it calls `name`."""

    type: Literal["auto", "none", "required", "function"]
    name: str = ""


class FunctionCall(Message):
    """`arguments`: a JSON object as text."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: Annotated[str, StringConstraints(max_length=4 * 1024 * 1024)]


class ToolCall(Message):
    id: Annotated[str, StringConstraints(max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall


def _bounded(call: ToolCall) -> ToolCall:
    """Counts before it reads: json holds the interpreter's lock while it makes lists."""
    arguments = call.function.arguments
    if (count := arguments.count("[") + arguments.count("{")) > MAX_BRACKETS:
        problem = f"have {count} opening brackets, {MAX_BRACKETS} at most; shorten them, or omit the call"
        raise WrongField("function.arguments", arguments, problem)
    if is_deeper_json(arguments):
        problem = f"are nested more than {MAX_DEPTH} deep; shorten them, or leave the call out"
        raise WrongField("function.arguments", arguments, problem)
    return call


EarlierCall = Annotated[ToolCall, AfterValidator(_bounded)]  # in a request, for the chat template


def check_lengths(tools: object) -> None:
    """Checks number and length before any tool is read, which takes time in proportion to its length. Other
    types are refused when they are read. Raises WrongField.
    """
    if not isinstance(tools, list | tuple):
        return
    if len(tools) > MAX_TOOLS:
        raise WrongField("tools", len(tools), _COUNT)
    texts = [text for tool in tools if isinstance(tool, dict) for text in tool.values()]
    if (size := sum(len(text) for text in texts if isinstance(text, str))) > MAX_BYTES:
        raise WrongField("tools", len(tools), f"have {size} characters, {MAX_BYTES} at most; shorten them")


def check_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Raises WrongField, for the request that has them."""
    if tools is None:
        if choice is not None and choice.type not in ("auto", "none"):
            raise WrongField("tool_choice", choice.type, "needs tools; give them, or leave it out")
        return
    if not tools:
        raise WrongField("tools", 0, _COUNT)
    if (size := sum(size_of(tool) for tool in tools)) > MAX_BYTES:
        raise WrongField("tools", [tool.name for tool in tools], f"take {size} bytes, {MAX_BYTES} at most")
    names = Counter(tool.name for tool in tools)
    [(name, times)] = names.most_common(1)
    if times > 1:
        raise WrongField("tools", name, "is the name of more than one function; rename the others")
    if choice is not None and choice.type == "function" and choice.name not in names:
        raise WrongField("tool_choice", choice.name, f"names none of the tools: {', '.join(names):.200}")


def has_later_name(tools: Sequence[Tool]) -> bool:
    """True if a name is one that workers did not take before message version 5."""
    return not all(_EARLY_NAME.fullmatch(tool.name) for tool in tools)


def size_of(tool: Tool) -> int:
    """In bytes."""
    return len(tool.name) + len(tool.description.encode()) + len(tool.parameters.encode())


def _problem_of_parameters(text: str) -> str | None:
    if problem := problem_of_schema(text):
        return problem
    schema: Any = json.loads(text)
    kind = schema.get("type", "object") if isinstance(schema, dict) else schema
    return None if kind == "object" else 'must be a schema of "type": "object": arguments have names'
