"""Requests with one value of an extreme shape: depth, magnitude, length or type, in any field. On the wire as
msgpack, and as the JSON of OpenAI's API.

A value is written in the place of a mark, as text or bytes: most could not be written from a Python object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgpack

DEPTHS = (1, 2, 31, 63, 64, 65, 66, 128, 255, 256, 257, 300, 490, 500, 511, 512, 600, 900, 980, 5000, 60_000)
DIGITS = (0, 1, 9, 15, 16, 18, 19, 20, 38, 39, 300, 308, 309, 310, 400, 1000, 4200, 4299, 4300, 5000)
LENGTHS = (0, 1, 2, 63, 64, 65, 80, 81, 256, 257, 512, 513, 4096, 4097, 16_385, 30_000)
_MARK = "\x07mark\x07"
_TYPES = (
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1.5",
    '""',
    '"x"',
    "[]",
    "{}",
    "[[]]",
    '{"":null}',
    '"1"',
    "1e5",
)
_SURROGATES = (r'"\ud800"', r'"a\udfffb"', r'{"a":"\ud83d"}', r'{"\udc00":1}')

SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"number","multipleOf":2,"enum":[2,4]},"b":{"pattern":"a+"}}}'
)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":{"b":[1]}}'}}
TURNS = [
    {"role": "user", "content": "w1"},
    {"role": "assistant", "content": "w2", "tool_calls": [CALL]},
    {"role": "tool", "content": "w3", "tool_call_id": "c"},
]
_SAMPLING: dict[str, Any] = {
    "max_tokens": 2, "min_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7,
    "stop": ["w5"], "stop_token_ids": [3], "repetition_penalty": 1.2, "presence_penalty": 0.5,
    "frequency_penalty": 0.5, "logit_bias": {"5": 1.5}, "logprobs": True, "top_logprobs": 2, "n": 2,
}  # fmt: skip


def text(chance: Random) -> str:
    """A value as JSON text, which may be longer than Python reads."""
    match chance.randrange(6):
        case 0:
            start, end = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
            depth = chance.choice(DEPTHS)
            return start * depth + "1" + end * (depth if chance.random() < 0.95 else depth - 1)
        case 1:
            number = chance.choice(("", "-")) + "1" + "0" * chance.choice(DIGITS)
            return number + chance.choice(("", "", ".5", "e5", "e400", "e-400"))
        case 2:
            return json.dumps(chance.choice(("x", "é", "w1 ", "[", "\\", "9")) * chance.choice(LENGTHS))
        case 3:
            return chance.choice(_SURROGATES)
        case 4:
            parts = [chance.choice(_TYPES)] * chance.choice(LENGTHS)
            if chance.random() < 0.5:
                return f"[{','.join(parts)}]"
            return "{" + ",".join(f'"{place}":{part}' for place, part in enumerate(parts)) + "}"
        case _:
            return chance.choice(_TYPES)


def packed(chance: Random) -> bytes:
    """A value as msgpack: what JSON text cannot be as such is a text."""
    if chance.random() < 0.3:
        start = chance.choice((b"\x91", b"\x81\xa1a"))
        return start * chance.choice(DEPTHS) + b"\x01"
    written = text(chance)
    try:
        data: bytes = msgpack.packb(json.loads(written))
    except (ValueError, OverflowError, RecursionError):
        data = msgpack.packb(written)
    return data


def wire_request(chance: Random) -> bytes:
    """A request of the protocol."""
    form = chance.choice(("json_schema", "json_object", "regex", "choice", "grammar"))
    texts = {
        "json_schema": SCHEMA,
        "json_object": "",
        "regex": "a+",
        "choice": '["w1"]',
        "grammar": "start: /a/",
    }
    tools = [{"name": "f", "description": "d", "parameters": SCHEMA}]
    asked = _some(chance, {
        "version": 3, "sampling": dict(_SAMPLING), "lane": "batch", "tenant": "t", "metadata": {"a": "b"},
        "stream": False, "traceparent": "00-a", "prediction": "w1", "cache": "use",
    }) | _input(chance, {"prompt": "w1", "token_ids": [1, 2]})  # fmt: skip
    if "messages" in asked:
        asked |= _some(
            chance, {"tools": tools, "tool_choice": {"type": "auto"}, "parallel_tool_calls": False}
        )
        asked |= _some(chance, {"chat_template_kwargs": {"a": {"b": [1]}}})
    if "tools" not in asked and chance.random() < 0.5:
        asked["response_format"] = {"type": form, "text": texts[form], "compact": False}
    if chance.random() < 0.5 and (inner := _with_text(chance, asked)) is not None:
        return bytes(msgpack.packb(inner))
    mark = msgpack.packb(_MARK)
    return bytes(msgpack.packb(_marked(chance, asked))).replace(mark, packed(chance))


def openai_body(chance: Random, *, chat: bool) -> bytes:
    """A body of OpenAI's API."""
    schema = json.loads(SCHEMA)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    given: dict[str, Any] = _some(chance, _SAMPLING | {
        "logprobs": True if chat else 2, "metadata": {"a": "b"}, "user": "u",
        "prediction": {"type": "content", "content": "w1"},
        "cache": {"no-cache": True}, "of_a_newer_api": 1, "guided_json": schema,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    }) | ({"messages": TURNS} if chat else {"prompt": "w1"})  # fmt: skip
    given.pop("response_format" if "guided_json" in given else "guided_json", None)
    given.pop("top_logprobs", None)
    if chat:
        given |= _some(
            chance, {"tools": tools, "tool_choice": "auto", "chat_template_kwargs": {"a": {"b": [1]}}}
        )
    given["model"] = "default"
    whole = json.dumps(_marked(chance, given), ensure_ascii=False)
    return whole.replace(json.dumps(_MARK), text(chance)).encode("utf-8", "surrogatepass")


def _input(chance: Random, others: dict[str, Any]) -> dict[str, Any]:
    if chance.random() < 0.6:
        return {"messages": json.loads(json.dumps(TURNS))}
    name = chance.choice(list(others))
    return {name: others[name]}


def _some(chance: Random, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if chance.random() < 0.4}


Path = tuple[str | int, ...]


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Of each value, and of those inside of it."""
    yield above
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in named:
        yield from _paths(inner, (*above, name))


def _changed(value: Any, path: Sequence[str | int], change: Callable[[Any], Any]) -> Any:
    """A copy with another value at the path."""
    if not path:
        return change(value)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], change)
    return copy


def _marked(chance: Random, value: Any) -> Any:
    """With the mark in the place of one value; seldom of the whole."""
    _, *inner = _paths(value)
    return _changed(value, chance.choice(inner) if chance.random() < 0.99 else (), lambda _: _MARK)


def _with_text(chance: Random, asked: dict[str, Any]) -> dict[str, Any] | None:
    """With another text of a field that is JSON itself: a part of it, or all."""
    fields = [path for path in _paths(asked) if path and path[-1] in ("arguments", "parameters", "text")]
    if not fields:
        return None

    def change(before: str) -> str:
        try:
            marked = json.dumps(_marked(chance, json.loads(before)))
        except (ValueError, IndexError):  # no JSON, or nothing in it
            return text(chance)
        return marked.replace(json.dumps(_MARK), text(chance))

    return _changed(asked, chance.choice(fields), change)
