"""Content as one text: OpenAI's lists of text parts joined, for clients and batch files."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.errors import InvalidRequest
from millstream.openai.structured_outputs import refuse_others

PredictionArgument = str | Mapping[str, object]


def text_of(where: str, content: object) -> str:
    """`content` is a text or a list of `{"type": "text", "text": …}`. Raises InvalidRequest below `where`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidRequest(where, content, "give a text")
    return "".join(_text(f"{where}[{place}]", part) for place, part in enumerate(content))


def predicted_text(given: object) -> str:
    """The text of a `prediction`: OpenAI's `{"type": "content", "content": …}`, or the text itself. Raises
    InvalidRequest.
    """
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping) or given.get("type") != "content":
        raise InvalidRequest("prediction", given, 'give {"type": "content", "content": …}')
    refuse_others("prediction", given, {"type", "content"})
    return text_of("prediction.content", given.get("content"))


def _text(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(f"{where}.type", kind, "only text parts are supported")
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text", text, "give a text")
    return text
