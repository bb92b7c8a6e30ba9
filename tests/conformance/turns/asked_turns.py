"""The requests of a conversation with tools, each turn with other bounds and another choice."""

from __future__ import annotations

from random import Random
from typing import Any

from conformance.watch.answers import ReadChoice

CUTS = (3, 8, 20, 40, 80, 160, 320)  # tokens of an answer
FULL = 8_000  # characters of a history: a new conversation begins
WORD = {"type": "string", "maxLength": 6}
FUNCTIONS: tuple[dict[str, Any], ...] = (
    {"name": "look_up", "description": "Looks up.", "strict": True, "parameters": {
        "type": "object", "properties": {"word": WORD, "old": {"type": "boolean"}},
        "required": ["word", "old"], "additionalProperties": False}},
    {"name": "tick"},
    {"name": "mills.build", "parameters": {
        "type": "object", "additionalProperties": False, "required": ["kind", "parts"], "properties": {
            "kind": {"enum": ["wind", "water", None, 7]},
            "parts": {"type": "array", "maxItems": 2, "items": {
                "type": "object", "properties": {"name": WORD, "size": {"type": "number"}},
                "required": ["name"], "additionalProperties": False}}}}},
    {"name": "tag", "parameters": {  # no grammar keeps it whole
        "type": "object", "additionalProperties": False, "required": ["tags"], "properties": {
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4, "uniqueItems": True}}}},
    {"name": "free", "parameters": {"type": "object", "properties": {"any": {}}}},
)  # fmt: skip
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "mill", "schema": {
        "type": "object", "properties": {"kind": {"enum": ["wind", "water"]}, "name": WORD},
        "required": ["kind", "name"], "additionalProperties": False}},
}  # fmt: skip


class Conversation:
    """Its own random numbers choose all but the answers. `strict`: a function is, whose texts are bounded."""

    def __init__(self, number: int, *, strict: bool) -> None:
        self._random = Random(number)
        self._strict = strict
        self._messages: list[dict[str, Any]] = []

    def next_request(self) -> dict[str, Any]:
        """Its answer is given to `add` before the next one."""
        if not self._messages or sum(len(str(one)) for one in self._messages) > FULL:
            self._messages = [{"role": "user", "content": f"mill {self._random.random()}?"}]
        draw = self._random
        tools = draw.sample(FUNCTIONS, draw.randint(1, len(FUNCTIONS)))
        asked: dict[str, Any] = {
            "model": "default", "messages": list(self._messages), "max_tokens": draw.choice(CUTS),
            "temperature": 1, "seed": draw.randrange(2**31), "n": draw.choice((1, 1, 2)),
            "tools": [{"type": "function", "function": self._function(one)} for one in tools],
            "tool_choice": draw.choice(("auto", "auto", "auto", "required")),
        }  # fmt: skip
        if draw.random() < 0.5:
            asked["parallel_tool_calls"] = False
        if draw.random() < 0.8:
            asked["chat_template_kwargs"] = {"enable_thinking": False}
        if draw.random() < 0.35:
            asked["response_format"] = draw.choice((FORMAT, {"type": "json_object"}))
        return asked

    def _function(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | ({"strict": False} if "strict" in given and not self._strict else {})

    def add(self, choice: ReadChoice) -> None:
        """A cut call, too, goes back to the model, as in frameworks that let it try again."""
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in choice.calls
        ]
        said: dict[str, Any] = {"role": "assistant", "content": choice.content or None}
        self._messages.append(said | ({"tool_calls": calls} if calls else {}))
        for call in choice.calls:
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
        if not calls:
            self._messages.append({"role": "user", "content": "and now?"})
