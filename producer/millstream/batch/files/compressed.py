"""Data compressed with gzip or zstd: detected by first bytes when read, chosen by name when written."""

from __future__ import annotations

import gzip
import importlib
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from millstream.batch.files.rowfile import replaced_file
from millstream.errors import InvalidRequest, MissingExtra

_PIECE_BYTES = 1024 * 1024
HEAD_BYTES = 4  # that tell a compression
_FED_BYTES, _MOST_FOUND = 16 * 1024, 128 * 1024  # of one call: a millisecond at most
_WINDOW_LOG = 23  # 8 MiB, which each decoder of zstd has to have (RFC 8878, 3.1.1.1.2)


class FileCompression(StrEnum):
    """Each value is the ending of a file's name."""

    GZIP = ".gz"
    ZSTD = ".zst"


_MAGIC = {b"\x1f\x8b": FileCompression.GZIP, b"\x28\xb5\x2f\xfd": FileCompression.ZSTD}


@dataclass(frozen=True, slots=True)
class Plain:
    """A file's uncompressed content. The position of `raw` is that in the compressed file."""

    file: BufferedIOBase
    raw: BinaryIO
    damage: tuple[type[Exception], ...] = ()  # raised by reads of a truncated or damaged file

    def close(self) -> None:
        self.file.close()
        self.raw.close()  # a decompressor leaves it open


class DamagedData(ValueError):
    """Compressed data are damaged, end too early, or need more memory than there is for them."""


class Decompressor:
    """Decompresses data that come in pieces, one member or frame behind the other, in bounded memory."""

    def __init__(self, packing: FileCompression) -> None:
        """Raises MissingExtra if this installation cannot read zstd."""
        self._zstd = _zstd() if packing is FileCompression.ZSTD else None
        self._damage: type[Exception] = self._zstd.ZstdError if self._zstd else zlib.error
        self._member: Any = None  # that has not ended

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields what the data hold, a piece of it for each step, which may be empty. Raises DamagedData."""
        for begin in range(0, len(data), _FED_BYTES):
            left, has_more = data[begin : begin + _FED_BYTES], False
            while has_more or (left := self._without_padding(left)):
                try:
                    found, left, has_more = self._step(left)
                except self._damage as error:
                    raise DamagedData(str(error)) from error
                yield found

    def end(self) -> None:
        """Raises DamagedData if the data are not whole."""
        if self._member is not None:
            raise DamagedData("it ends too early")

    def _without_padding(self, data: bytes) -> bytes:
        """Zeros may stand behind a member of gzip."""
        return data.lstrip(b"\0") if self._member is None and self._zstd is None else data

    def _step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Returns a piece, the data that are left, and True if there is more to find without any."""
        member = self._member = self._member or self._new_member()
        found: bytes = member.decompress(data, _MOST_FOUND)
        if member.eof:
            self._member = None
            return found, member.unused_data, False
        if self._zstd is None:
            return found, member.unconsumed_tail, len(found) == _MOST_FOUND
        return found, b"", not member.needs_input  # it keeps the data

    def _new_member(self) -> Any:
        if self._zstd is None:
            return zlib.decompressobj(zlib.MAX_WBITS | 16)  # with the head and the end of gzip
        bounds = {self._zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        return self._zstd.ZstdDecompressor(options=bounds)


def compression_in(head: bytes) -> FileCompression | None:
    """The compression of data that begin so."""
    return next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), None)


def compression_of(path: Path) -> FileCompression | None:
    """The compression that a file of this name is written with."""
    return next((packing for packing in FileCompression if path.suffix == packing), None)


def open_plain(path: Path) -> Plain:
    """Open a file for reading. Raises OSError, and MissingExtra if this installation cannot read zstd."""
    raw = path.open("rb")
    try:
        head = raw.read(HEAD_BYTES)
        raw.seek(0)
        match compression_in(head):
            case FileCompression.GZIP:
                damage = (EOFError, zlib.error, gzip.BadGzipFile)
                return Plain(gzip.GzipFile(fileobj=raw), raw, damage)
            case FileCompression.ZSTD:
                zstd = _zstd()
                return Plain(zstd.ZstdFile(raw), raw, (EOFError, zstd.ZstdError))
            case _:
                return Plain(raw, raw)
    except BaseException:
        raw.close()
        raise


def unpack(source: Path, target: Path) -> None:
    """Decompress into `target`, which appears complete or not at all. Raises InvalidRequest, OSError."""
    plain = open_plain(source)
    try:
        with replaced_file(target) as file:
            shutil.copyfileobj(plain.file, file, _PIECE_BYTES)
    except plain.damage as error:
        raise InvalidRequest("OUT", str(source), f"is cut off or damaged: {error}") from error
    finally:
        plain.close()


def pack(source: Path, target: Path, packing: FileCompression) -> None:
    """Compress into `target`, which appears complete or not at all. Raises MissingExtra, OSError."""
    with source.open("rb") as plain, replaced_file(target) as file, _packer(file, packing) as packer:
        shutil.copyfileobj(plain, packer, _PIECE_BYTES)


def check_compression(packing: FileCompression | None) -> None:
    """Raises MissingExtra if this installation cannot write it."""
    if packing is FileCompression.ZSTD:
        _zstd()


def _packer(file: BinaryIO, packing: FileCompression) -> BinaryIO:
    if packing is FileCompression.ZSTD:
        packer: BinaryIO = _zstd().ZstdFile(file, "w")
        return packer
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0)  # type: ignore[return-value]  # equal rows, equal bytes


def _zstd() -> ModuleType:
    """Python's own from 3.14 on; its backport before."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingExtra("cli", "a file compressed with zstd")
