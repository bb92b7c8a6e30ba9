"""Bodies of multipart/form-data, piece by piece, so that they can be wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

Part = tuple[str, bytes]  # its Content-Disposition, its value


def field(name: str, value: str) -> Part:
    return (f'form-data; name="{name}"', value.encode())


FILE = ('form-data; name="file"; filename="a"', b"line\n")
PURPOSE = field("purpose", "batch")
ANCHOR = field("expires_after[anchor]", "created_at")


def form(*parts: Part, boundary: str = "b", end: str = "--") -> dict[str, Any]:
    """The arguments of a POST."""
    lines = b""
    for disposition, value in parts:
        lines += f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + value + b"\r\n"
    lines += f"--{boundary}{end}\r\n".encode()
    return {"content": lines, "headers": {"content-type": f"multipart/form-data; boundary={boundary}"}}


async def repeated(data: bytes, count: int) -> AsyncIterator[bytes]:
    """The pieces of a form whose file is so many times the data."""
    head, tail = form(PURPOSE, (FILE[0], b"|"))["content"].split(b"|")
    yield head
    for _ in range(count):
        yield data
    yield tail
