"""Content as one text, or as parts where images stand among its texts: for clients, the gateway and batch
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.messages.image_parts import IMAGE_FIELDS, RequestImages, is_image
from millstream.openai.structured_outputs import refuse_others
from millstream.openai.unsupported_field import UnsupportedField

PredictionArgument = str | Mapping[str, object]
# Parts that are texts, and the field that has it; those of the Responses API and of refusals among them.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_FIELDS = _TEXTS | IMAGE_FIELDS
PART_NAMES = frozenset({"type", *_FIELDS.values()})


def content_fields(where: str, content: object, refusal: str, images: RequestImages) -> dict[str, Any]:
    """The `content` of a message, or its `parts` if it has images, which are added to `images`. Null and an
    empty list give an empty text; `refusal` comes behind all. Raises InvalidRequest below `where`.
    """
    if content is None or content in ([], ()):
        return {"content": refusal}
    if not isinstance(content, list | tuple) or not any(map(is_image, content)):
        return {"content": text_of(where, content) + refusal}
    parts: list[dict[str, Any]] = []
    message = where.removesuffix(".content")
    for place, part in enumerate([*content, refusal]):
        path = f"{where}[{place}]"
        if is_image(part):
            parts.append({"image": images.place_of(path, part)})
        elif not (text := _text(path, part)):
            continue
        elif parts and "text" in parts[-1]:
            parts[-1]["text"] += text
        else:
            parts.append({"text": text})
        images.sent.setdefault(f"{message}.parts[{len(parts) - 1}]", path)
    return {"content": "", "parts": tuple(parts)}


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
    names = {name for part in parts if isinstance(part, dict) for name in _unknown_in(part)}
    return tuple(f"messages.content.{name}" for name in sorted(names))


def _unknown_in(part: Mapping[str, object]) -> Iterator[str]:
    known = _FIELDS.get(str(part.get("type")))
    yield from (name for name, value in part.items() if value is not None and name not in ("type", known))
    if known == "image_url" and isinstance(inner := part.get(known), Mapping):
        yield from (f"{known}.{name}" for name, value in inner.items() if value is not None and name != "url")


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
        raise UnsupportedField(f"{where}.type", kind, "only text and image parts are supported")
    field = _TEXTS[kind]
    if not isinstance(text := part.get(field), str):
        raise InvalidRequest(f"{where}.{field}", text, "give a text")
    return text
