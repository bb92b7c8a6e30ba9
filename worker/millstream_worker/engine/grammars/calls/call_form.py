"""The forms in which models write calls of functions: the texts that stand around names and arguments."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_ELSEWHERE = re.compile(r'"\$ref": "(#(?!/(?:\$defs|definitions)/)[^"]*)"')
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s\"{}]+\]")


@dataclass(frozen=True, slots=True)
class CallForm:
    """Calls are written as `begin NAME middle ARGUMENTS (joint NAME middle ARGUMENTS)* end`. No joint: an
    answer has one call at most. Arguments are a JSON object; with a `key` they are `(key NAME value VALUE
    after)*`, texts as they are and other values as JSON. `answer`: what begins an answer without calls, where
    that takes their place; else text may come before them.
    """

    begin: str
    middle: str
    end: str
    joint: str = ""
    item_separator: str = ", "
    key_separator: str = ": "
    key: str = ""
    value: str = ""
    after: str = ""
    answer: str = ""

    @property
    def tag(self) -> str:
        """Returns the tag with which calls begin, behind any text; empty: they are a whole answer, which
        begins with `begin`.
        """
        found = _TAG.match(self.begin)
        return found[0] if found else ""

    @property
    def close(self) -> str:
        """Returns the text behind each call's arguments, whether another one follows or not."""
        return self.end[: shared_start(self.joint or self.end, self.end)]

    @property
    def literals(self) -> tuple[str, ...]:
        return self.begin, self.middle, self.joint, self.end, self.key, self.value, self.after, self.answer

    def head_of(self, name: str) -> tuple[str, ...]:
        """Returns the texts with which a call of this function begins, behind `begin`: enough of each to tell
        it from functions whose names begin with this one.
        """
        own = name + self.middle
        return (own + self.key, own + self.close) if self.key else (own,)

    def plain(self) -> dict[str, str]:
        """Returns the fields by name, as a grammar's spec has them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def of_plain(cls, given: Mapping[str, Any]) -> CallForm:
        return cls(**given)

    def call_schema(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the JSON schema of a whole call with arguments of this one. Raises ValueError for a form
        whose calls are no JSON objects as written by its separators, and for references to other parts of
        the arguments than their definitions.
        """
        text = f"{self.begin}{name}{self.middle}null{self.end}"
        call = json.loads(text)
        if text != json.dumps(call, separators=(self.item_separator, self.key_separator)):
            raise ValueError(f"calls as {text:.60} cannot be told from an answer of a format")
        if found := _ELSEWHERE.search(json.dumps(arguments)):
            raise ValueError(f"with a format, parameters refer to their $defs only, not to {found[1]:.60}")
        shared = {key: arguments[key] for key in ("$defs", "definitions") if key in arguments}
        properties = {key: arguments if value is None else {"const": value} for key, value in call.items()}
        whole = {"type": "object", "properties": properties, "required": list(call)}
        return shared | whole | {"additionalProperties": False}


def is_tag(text: str) -> bool:
    """True for a whole tag, as <tool_call> or [ARGS]."""
    return _TAG.fullmatch(text) is not None


def shared_start(one: str, other: str) -> int:
    """Returns how many first characters of the texts are the same."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 - of characters, as meant


HERMES = CallForm(
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    joint='}\n</tool_call>\n<tool_call>\n{"name": "',
    end="}\n</tool_call>",
)  # and Qwen's
HARMONY = CallForm(
    begin="<|channel|>commentary to=functions.",
    middle=" <|constrain|>json<|message|>",
    end="",
    answer="<|channel|>final<|message|>",
)  # gpt-oss'; in a history templates write it otherwise
