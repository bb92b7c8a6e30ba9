"""Reads the parts of a multipart body while it comes; collects nothing but short fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.openai.api_error import ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_PARTS = 20
MOST_HEADER_BYTES = 8192  # of one part


@dataclass(frozen=True, slots=True)
class PartHead:
    name: str
    filename: str | None


@dataclass(slots=True, eq=False)
class _Pushed:
    """Collects the parser's findings since the last look: heads of parts, and their data."""

    found: list[PartHead | bytes] = field(default_factory=list)
    ended: bool = False
    _parts: int = 0
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _headers: dict[bytes, bytes] = field(default_factory=dict)

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": self._add_data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise FormParserError(f"it has more than {MOST_PARTS} parts")

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        if len(self._value) > MOST_HEADER_BYTES:
            raise FormParserError(f"a part has a header of more than {MOST_HEADER_BYTES} bytes")

    def _end_header(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_head(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise FormParserError('a part has no header `Content-Disposition: form-data; name="…"`')
        filename = options.get(b"filename")
        self.found.append(PartHead(_text(options[b"name"]), None if filename is None else _text(filename)))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self.found.append(data[start:end])

    def _end(self) -> None:
        self.ended = True


async def multipart_parts(request: Request) -> AsyncIterator[PartHead | bytes]:
    """Yields each part's head, and then its data as it comes. Raises ApiError 400, ClientDisconnected."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ApiError(400, "send the file as multipart/form-data with a boundary", "invalid_multipart")
    pushed = _Pushed()
    try:
        parser = MultipartParser(boundary, pushed.callbacks())
        async for data in request.stream():
            parser.write(data)
            for one in pushed.found:
                yield one
            pushed.found.clear()
        parser.finalize()
    except FormParserError as error:
        raise ApiError(400, f"the multipart body is damaged: {error!s:.200}", "invalid_multipart") from None
    except ClientDisconnect:
        raise ClientDisconnected from None
    if not pushed.ended:
        raise ApiError(400, "the multipart body ends before its last boundary", "invalid_multipart")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
