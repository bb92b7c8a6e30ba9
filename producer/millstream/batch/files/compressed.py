"""Files compressed with gzip or zstd: detected by first bytes when read, chosen by name when written."""

from __future__ import annotations

import gzip
import importlib
import shutil
import zlib
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from millstream.batch.files.rowfile import replaced_file
from millstream.errors import InvalidRequest, MissingExtra

_PIECE_BYTES = 1024 * 1024


class FileCompression(StrEnum):
    """Each value is the ending of a file's name."""

    GZIP = ".gz"
    ZSTD = ".zst"


_MAGIC = {b"\x1f\x8b": FileCompression.GZIP, b"\x28\xb5\x2f\xfd": FileCompression.ZSTD}


@dataclass(frozen=True, slots=True)
class Plain:
    """A file's uncompressed content. The position of `raw` is that in the compressed file."""

    file: BufferedIOBase
    raw: BufferedIOBase
    damage: tuple[type[Exception], ...] = ()  # raised by reads of a truncated or damaged file

    def close(self) -> None:
        self.file.close()
        self.raw.close()  # a decompressor leaves it open


def compression_of(path: Path) -> FileCompression | None:
    """The compression that a file of this name is written with."""
    return next((packing for packing in FileCompression if path.suffix == packing), None)


def open_plain(path: Path) -> Plain:
    """Open a file for reading. Raises OSError, and MissingExtra if this installation cannot read zstd."""
    raw = path.open("rb")
    try:
        head = raw.read(4)
        raw.seek(0)
        match next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), None):
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
