"""A chat message's content as one text: OpenAI's lists of text parts joined, for clients and batch files."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.errors import InvalidRequest


def text_of(where: str, content: object) -> str:
    """`content` is a text or a list of `{"type": "text", "text": …}`. Raises InvalidRequest below `where`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidRequest(where, content, "give a text")
    return "".join(_text(f"{where}[{place}]", part) for place, part in enumerate(content))


def _text(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(f"{where}.type", kind, "only text parts are supported")
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text", text, "give a text")
    return text
