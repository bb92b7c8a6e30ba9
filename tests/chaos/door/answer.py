"""One answer that a client asks for, and whether what it heard is that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"
_DATA = "data: "


@dataclass(slots=True, eq=False)
class Asked:
    """`key`: its Idempotency-Key. `text`: what the answer must be. `ids`: of all answers to it."""

    path: str
    body: Mapping[str, Any]
    text: str
    key: str | None
    ids: set[str] = field(default_factory=set)
    whole: int = 0  # how often it was answered
    refused: bool = False

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def job_id(self) -> str:
        [id] = self.ids
        return id.partition("-")[2]


@dataclass(slots=True, eq=False)
class Heard:
    """Of one try. A stream that breaks must show it: by an error, or by a connection that is cut."""

    text: str = ""
    finish: str | None = None
    tokens: int | None = None  # as its usage says
    ids: set[str] = field(default_factory=set)
    done: bool = False
    error: str = ""
    refused: bool = False  # answered by a status alone
    after_end: int = 0

    def take(self, line: str) -> None:
        """One line of an event stream."""
        if not line.startswith(_DATA):
            return
        self.after_end += self.done or bool(self.error)
        data = line.removeprefix(_DATA)
        if data == DONE:
            self.done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.error = json.dumps(chunk["error"])
            return
        self._add(chunk)

    def take_whole(self, body: Mapping[str, Any]) -> None:
        """An answer that is not streamed."""
        self._add(body)
        self.done = True

    def fault(self, asked: Asked, *, cut: bool) -> str:
        """What is wrong with it; empty: nothing. `cut`: the connection has ended before the answer."""
        text, wanted = " ".join(self.text.split()), " ".join(asked.text.split())
        told = f"{len(text.split())} of {len(wanted.split())} words"
        if self.after_end:
            return f"{self.after_end} events behind the end of a stream"
        if self.done and (text != wanted or self.finish != "length"):
            return f"ends as if whole with another text, {told}, {self.finish}: {text[-60:]!r}"
        if self.done and self.tokens != len(wanted.split()):
            return f"its usage says {self.tokens} tokens, {told}"
        if not wanted.startswith(text):
            return f"has another text before its end, {told}: {text[-60:]!r}"
        if not (self.done or self.error or self.refused or cut):
            return f"ends without {DONE}, error or cut, {told}"
        return ""

    def _add(self, body: Mapping[str, Any]) -> None:
        self.ids.add(body["id"])
        if usage := body.get("usage"):
            self.tokens = usage["completion_tokens"]
        for choice in body["choices"]:
            said = choice.get("delta") or choice.get("message") or {}
            self.text += choice.get("text") or said.get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
