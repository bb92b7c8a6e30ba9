"""Hashes of the first 1, 2, 4, … KiB of what a line asks a model to read: the fields that stand before its
messages in a prompt, then its messages one after the other, or its prompt. Two lines have the same hash where
they begin alike, whatever their custom_ids and sampling.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from zlib import adler32, crc32

from millstream.client.submit.request_cost import BYTES_PER_TOKEN, IMAGE_TOKENS
from millstream.openai.messages.image_parts import IMAGE_FIELDS, is_image

SIZES = tuple(1024 << level for level in range(7))  # bytes; 64 KiB are some 16,000 tokens
_MOST = SIZES[-1]
_BEFORE = {"tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "truncate_prompt_tokens"}
_END = "\x1f"  # of a field or a part: one that a text has itself joins lines that do not begin alike, no more
_IMAGE_BYTES = IMAGE_TOKENS * BYTES_PER_TOKEN  # that an image counts as
_HEAD, _TAIL = 32 * 1024, 1024  # characters of an image's text that tell it from others of its length


def beginnings_of(fields: Mapping[str, Any]) -> Sequence[int]:
    """64 bits for each size that the line reaches; none for a body that cannot be read."""
    body = fields.get("body")
    if not isinstance(body, dict):
        return ()
    pieces: list[str] = []
    left = _MOST
    try:
        for piece in _pieces(fields, body):
            pieces.append(piece[:left])
            left -= len(pieces[-1])
            if not left:
                break
    except RecursionError:  # it becomes an error row
        return ()
    text = "".join(pieces)
    return _hashes(text.encode("utf-8", "surrogatepass")) if 4 * len(text) >= SIZES[0] else ()


def _hashes(data: bytes) -> list[int]:
    """Two checksums take a third of the time of a digest. A text made to have those of another is sent beside
    it, and that is all.
    """
    first, second, begin = 0, 1, 0
    hashes = []
    for end in SIZES:
        if end > len(data):
            break
        piece = data[begin:end]
        first, second, begin = crc32(piece, first), adler32(piece, second), end
        hashes.append(first << 32 | second)
    return hashes


def _pieces(fields: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[str]:
    """The text that is compared, made no further than it is asked for: a short image has a long piece."""
    yield f"{fields.get('url')}{_END}{body.get('model')}{_END}"
    if not _BEFORE.isdisjoint(body):
        yield repr([body.get(name) for name in sorted(_BEFORE)])
    if isinstance(messages := body.get("messages"), list):
        for message in messages:
            yield from _of_message(message)
    else:
        yield from _of_prompt(body.get("prompt"))


def _of_message(message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        yield repr(message)
        return
    content = message.get("content")
    yield f"{message.get('role')}{_END}"
    for part in content if isinstance(content, list) else [content]:  # a text is as a single part with it
        yield _part(part)
        yield _END
    if len(message) > 2:
        yield repr([(key, message[key]) for key in sorted(message.keys() - {"role", "content"})])


def _of_prompt(prompt: object) -> Iterator[str]:
    """A text, token ids, or a list of these."""
    are_ids = isinstance(prompt, list) and prompt and isinstance(prompt[0], int)
    for one in prompt if isinstance(prompt, list) and not are_ids else [prompt]:
        if isinstance(one, list):
            with suppress(TypeError, OverflowError):  # it becomes an error row
                yield array("I", one[: _MOST // BYTES_PER_TOKEN]).tobytes().decode("latin-1")
        else:
            yield one if isinstance(one, str) else repr(one)
        yield _END


def _part(part: object) -> str:
    """An image is its identity, repeated: its path, or its length, its beginning and its end, where formats
    have their checksums.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return repr(part)
    if not is_image(part):
        return text if isinstance(text := part.get("text"), str) else repr(part)
    given = part.get(IMAGE_FIELDS[part["type"]])
    named = str(given.get("url") if isinstance(given, dict) else given)
    data = f"{len(named)} {named[:_HEAD]} {named[-_TAIL:]}".encode("utf-8", "surrogatepass")
    mark = f"{_END}{crc32(data):08x}{adler32(data):08x}"
    return mark * (_IMAGE_BYTES // len(mark))
