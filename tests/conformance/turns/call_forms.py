"""The forms in which models write calls, read by code that shares nothing with the worker's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from support.models import call_templates

from conformance.chat_templates import TEMPLATE_OF_NAMES


@dataclass(frozen=True, slots=True)
class RawCalls:
    """`whole`: name and arguments, as JSON text, of each call with whole arguments. `begun`: the same of one
    that was cut in them, with all that follows these; None in their place where they are no JSON.
    """

    whole: list[tuple[str, str]]
    begun: tuple[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class CallForm:
    """`template`: a chat template that writes calls so; `marks`: what never stands in an answer's content,
    and is a token of its own; `by_parameter`: texts are bare: JSON of another type looks the same;
    `in_channels`: thoughts are messages before that of the answer.
    """

    name: str
    template: str
    marks: tuple[str, ...]
    read: Callable[[str], RawCalls]
    by_parameter: bool = False
    in_channels: bool = False


def hermes_calls(text: str) -> RawCalls:
    parts = text.split("<tool_call>\n")[1:]
    whole: list[tuple[str, str]] = []
    begun = None
    for part in parts:
        called, end, _ = part.partition("\n</tool_call>")
        if end:
            read = json.loads(called)
            whole.append((read["name"], json.dumps(read["arguments"])))
        elif cut := re.fullmatch(r'\{"name": "([^"]+)", "arguments": ((?:\{.*)?)', called, re.DOTALL):
            begun = (cut[1], cut[2])
    return RawCalls(whole, begun)


HERMES = CallForm("hermes", TEMPLATE_OF_NAMES, ("<tool_call>", "</tool_call>"), hermes_calls)


def json_calls(begin: str, middle: str, joint: str) -> Callable[[str], RawCalls]:
    """Reads calls with a JSON object between these texts."""

    def read(text: str) -> RawCalls:
        whole: list[tuple[str, str]] = []
        _, found, rest = text.partition(begin)
        while found:
            name, found, rest = rest.partition(middle)
            if not found:
                break
            try:
                arguments, end = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                return RawCalls(whole, (name, rest))
            whole.append((name, json.dumps(arguments)))
            found, rest = rest[end:].startswith(joint) and joint, rest[end + len(joint) :]
        return RawCalls(whole)

    return read


def parameter_calls(
    begin: str, middle: str, joint: str, key: str, value: str, after: str
) -> Callable[[str], RawCalls]:
    """Reads calls with each parameter between these texts; `joint` stands behind the last one."""

    def read(text: str) -> RawCalls:
        whole: list[tuple[str, str]] = []
        for call in text.partition(begin)[2].split(begin):
            head, ended, _ = call.partition(joint)
            name, *given = re.split(re.escape(middle + key) + "|" + re.escape(key), head)
            pairs = [one.partition(value) for one in given]
            arguments = {pair[0]: plain(pair[2].removesuffix(after)) for pair in pairs}
            name = name.removesuffix(middle)
            if ended:
                whole.append((name, json.dumps(arguments)))
            elif given:
                return RawCalls(whole, (name, None))
        return RawCalls(whole)

    return read


def plain(text: str) -> object:
    """The JSON that a text is, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


FORMS = (
    HERMES,
    CallForm(
        "llama-3", call_templates.LLAMA_3, (), json_calls('{"name": "', '", "parameters": ', "no other")
    ),
    CallForm(
        "mistral", call_templates.MISTRAL, ("[TOOL_CALLS]",),
        json_calls('[TOOL_CALLS] [{"name": "', '", "arguments": ', '}, {"name": "'),
    ),
    CallForm(
        "mistral-3", call_templates.MISTRAL_3, ("[TOOL_CALLS]", "[ARGS]"),
        json_calls("[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]"),
    ),
    CallForm(
        "deepseek-3.1", call_templates.DEEPSEEK_3_1, ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        json_calls(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
        ),
    ),
    CallForm(
        "qwen3-coder", call_templates.QWEN3_CODER, ("<tool_call>",),
        parameter_calls(
            "<tool_call>\n<function=", ">\n", "</function>\n", "<parameter=", ">\n", "\n</parameter>\n"
        ),
        by_parameter=True,
    ),
    CallForm(
        "glm", call_templates.GLM, ("<tool_call>", "<arg_key>", "<arg_value>"),
        parameter_calls(
            "<tool_call>", "\n", "</tool_call>", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"
        ),
        by_parameter=True,
    ),
    CallForm(
        "harmony", call_templates.HARMONY, call_templates.HARMONY_TOKENS,
        json_calls("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "no other"),
        in_channels=True,
    ),
)  # fmt: skip
