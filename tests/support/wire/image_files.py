"""Small image files, whole and of any size, without a library."""

from __future__ import annotations

import base64
import struct
import zlib

# The beginnings of each format that a request takes; no more of them is looked at before a worker.
BEGINNINGS = {
    "jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF\0", "webp": b"RIFF\x1a\0\0\0WEBPVP8L", "gif": b"GIF89a\1\0\1\0",
    "bmp": b"BM\x1e\0\0\0", "tiff": b"II*\0\x08\0\0\0", "big-endian tiff": b"MM\0*\0\0\0\x08",
}  # fmt: skip


def png(shade: int = 0, width: int = 2, height: int = 2) -> bytes:
    """A whole PNG of one shade of grey, from 0 to 255."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes([shade]) * width) * height)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data) for kind, data in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    )


def data_url(image: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(image).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
