"""Reads the images in the parts of messages, as clients of OpenAI's API and of transformers send them.

Nothing is fetched, and files are read for Python callers only: in a body that came over a network, a path is
somebody else's.
"""

from __future__ import annotations

import binascii
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import MAX_IMAGES, Image, problem_of_image

IMAGE_FIELDS = {"image_url": "image_url", "input_image": "image_url", "image": "image"}  # by a part's type
NO_URLS = "images are not fetched from URLs; send the image itself as a data: URL"
NO_PATHS = "local files are read by `batch run --media DIR` and the Python client only"
_URLS = ("http://", "https://")
_LONGEST_PATH = 1024  # characters: what is longer may be an image
_OF_WHOLE = f"a whole message may have {MAX_MESSAGE_BYTES:,}; send smaller images"
_FORMS = "give a data: URL"
FileReader = Callable[[str, str], bytes]  # of a field's path and the text in it; raises InvalidRequest
_LOCAL_FORMS = "give a path, the bytes of an image file, a PIL image or a data: URL"


class RequestImages:
    """The images of one request in their order, each different one once. `local`: paths, bytes and PIL images
    are taken, too; `files`: paths are, which it reads. `sent`: the fields of the messages as they were sent,
    by those of the request's parts: texts beside each other are one part there.
    """

    def __init__(self, *, local: bool = False, files: FileReader | None = None) -> None:
        self._local, self._files = local, files
        self._places: dict[bytes, int] = {}
        self.sent: dict[str, str] = {}

    def place_of(self, where: str, part: Mapping[Any, Any]) -> int:
        """Takes the image of a part, whose type is one of IMAGE_FIELDS; returns its place. Raises
        InvalidRequest below `where`.
        """
        field = IMAGE_FIELDS[part["type"]]
        given, below = _given(part, field)
        path = f"{where}.{below}"
        data = self._data(path, given, local=self._local and field == "image")
        if problem := problem_of_image(data):
            raise InvalidRequest(path, f"{len(data)} bytes", problem)
        place = self._places.setdefault(data, len(self._places))
        if place >= MAX_IMAGES:
            raise InvalidRequest(path, place + 1, f"a request may have {MAX_IMAGES} images; send fewer")
        return place

    def fields(self) -> dict[str, Any]:
        """The field of a request that has any."""
        return {"images": tuple(Image(data=data) for data in self._places)} if self._places else {}

    def _data(self, where: str, given: object, *, local: bool) -> bytes:
        if isinstance(given, str) and given[:5].lower() == "data:":
            return _of_data_url(where, given)
        if isinstance(given, str) and given[:8].lower().startswith(_URLS):
            raise InvalidRequest(where, given, NO_URLS)
        if local:
            return _of_python(where, given)
        is_path = isinstance(given, str) and 0 < len(given) < _LONGEST_PATH
        if self._files is not None and isinstance(given, str) and is_path:
            return self._files(where, given)
        raise InvalidRequest(where, _shown(given), NO_PATHS if is_path else _FORMS)


def has_images(fields: object) -> bool:
    """True if a message in these arguments of `submit` has an image: it takes a while to read, and may be a
    file.
    """
    return any(image_parts(fields.get("messages") if isinstance(fields, Mapping) else None))


def image_paths(messages: object) -> Iterator[str]:
    """The paths that image parts of a body's messages give."""
    for part in image_parts(messages):
        given, _ = _given(part, IMAGE_FIELDS[part["type"]])
        if not isinstance(given, str) or given[:8].lower().startswith(("data:", *_URLS)):
            continue
        if 0 < len(given) < _LONGEST_PATH:
            yield given


def image_parts(messages: object) -> Iterator[Mapping[Any, Any]]:
    """The parts of a body's messages that are images, whatever else is wrong with these."""
    if not isinstance(messages, Sequence):
        return
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    yield from filter(is_image, parts)


def _given(part: Mapping[Any, Any], field: str) -> tuple[object, str]:
    """The value of a part's image, and its path below the part."""
    given = part.get(field)
    if field == "image_url" and isinstance(given, Mapping):
        return given.get("url"), f"{field}.url"
    return given, field


def is_image(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return isinstance(kind, str) and kind in IMAGE_FIELDS


def _of_data_url(where: str, url: str) -> bytes:
    head, comma, text = url.partition(",")
    media_type, *parameters = head[len("data:") :].lower().split(";")
    if not media_type.startswith("image/"):
        problem = f"has the media type {media_type[:64]!r}; only text and image parts are supported"
        raise UnsupportedField(where, _size(url), problem)
    if not comma or "base64" not in (parameter.strip() for parameter in parameters):
        raise InvalidRequest(where, _size(url), "must go on with ;base64, and the image file as base64")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # also a text that is not ASCII
        problem = f"is not base64 ({error}); encode the whole image file, without line breaks"
        raise InvalidRequest(where, _size(url), problem) from None


def _of_python(where: str, given: object) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str | Path):
        return _of_file(where, given)
    if callable(save := getattr(given, "save", None)):
        return _saved(where, save)
    raise InvalidRequest(where, type(given).__name__, _LOCAL_FORMS)


def _of_file(where: str, path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_MESSAGE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in it
        problem = f"cannot be read ({getattr(error, 'strerror', None) or error}); give an image file"
        raise InvalidRequest(where, _shown(str(path)), problem) from None
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(where, str(path), f"has more bytes than fit: {_OF_WHOLE}")
    return data


def _saved(where: str, save: Any) -> bytes:
    """The PIL image, which nothing changes in this format."""
    file = io.BytesIO()
    try:
        save(file, format="PNG")
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"cannot be saved as PNG ({error!r:.200}); convert it to RGB"
        raise InvalidRequest(where, "an image", problem) from error
    return file.getvalue()


def _shown(given: object) -> object:
    return _size(given) if isinstance(given, str) and len(given) >= _LONGEST_PATH else given


def _size(url: str) -> str:
    return f"{len(url)} characters"
