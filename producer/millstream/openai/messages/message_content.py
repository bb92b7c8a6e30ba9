"""Content as one text: OpenAI's lists of text parts joined, for clients, the gateway and batch files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.errors import InvalidRequest
from millstream.openai.structured_outputs import refuse_others
from millstream.openai.unsupported_field import UnsupportedField

PredictionArgument = str | Mapping[str, object]
# Parts that are texts, and the field that has it; those of the Responses API and of refusals among them.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
PART_NAMES = frozenset({"type", *_TEXTS.values()})


def text_of_message(where: str, content: object) -> str:
    """Returns a message's content as one text: null and an empty list give an empty one."""
    return "" if content is None or content in ([], ()) else text_of(where, content)


def text_of(where: str, content: object) -> str:
    """`content` is a text, or a list of texts and `{"type": "text", "text": …}`. Raises InvalidRequest below
    `where`.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidRequest(where, content, "give a text")
    return "".join(_text(f"{where}[{place}]", part) for place, part in enumerate(content))


def unknown_in_parts(contents: Iterable[object]) -> tuple[str, ...]:
    """Names beside the fields of the parts of these contents, for a sign: they change no text."""
    parts = (part for content in contents if isinstance(content, list) for part in content)
    names = {
        name
        for part in parts
        if isinstance(part, dict)
        for name, value in part.items()
        if value is not None and name not in ("type", _TEXTS.get(str(part.get("type"))))
    }
    return tuple(f"messages.content.{name}" for name in sorted(names))


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
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str) or kind not in _TEXTS:
        raise UnsupportedField(f"{where}.type", kind, "only text parts are supported")
    field = _TEXTS[kind]
    if not isinstance(text := part.get(field), str):
        raise InvalidRequest(f"{where}.{field}", text, "give a text")
    return text
