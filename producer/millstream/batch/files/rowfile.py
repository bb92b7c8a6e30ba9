"""Files of JSON rows that a run appends to: whole rows or none, readable after any crash."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from millstream.errors import InvalidRequest, MillstreamError
from millstream.json_bytes import json_bytes

_PIECE_BYTES = 64 * 1024


class WriteFailed(MillstreamError):
    """A file of the run can no longer be written: the disk is full, or gone."""


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Raises WriteFailed where what writes this file raises OSError."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(f"{path} cannot be written: {error.strerror}") from error


def append_to(path: Path) -> FileIO:
    """Unbuffered, so that closing the file does not retry a failed write. It may be read by `row_at`."""
    return open(path, "a+b", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o666))


def sync_folder(path: Path) -> None:
    """Write a new file's name to disk, which takes an fsync of its folder. If the file system cannot do that
    (many network ones, FUSE), or we may not read the folder, the file's own fsync has to suffice.
    """
    try:
        folder = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def write_rows(file: FileIO, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Write all rows or, if that fails, nothing: the next row must not follow half a row.

    Returns the bytes written. Raises WriteFailed.
    """
    if not (data := b"".join(map(_encode, rows))):
        return data
    before = os.fstat(file.fileno()).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            file.truncate(before)
        raise WriteFailed(f"{os.fsdecode(file.name)} cannot be written: {error.strerror}") from error
    return data


def row_at(file: FileIO, place: int) -> dict[str, Any] | None:
    """The row that begins there; None if no whole one does. Raises WriteFailed."""
    data = bytearray()
    try:
        while not data.endswith(b"\n") and (piece := os.pread(file.fileno(), _PIECE_BYTES, place)):
            place += len(piece)
            data += piece[: piece.find(b"\n") + 1] or piece
    except OSError as error:
        raise WriteFailed(f"{file.name} cannot be read: {error.strerror}") from error
    try:
        row = json.loads(data)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def rows_of(path: Path, what: str, ours: Callable[[Mapping[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    """The rows of one of our files; a torn last line is cut off.

    Raises InvalidRequest for any other file, before anything is changed.
    """
    if not path.exists():
        return
    whole = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not ours(row):
                raise InvalidRequest(
                    what, str(path), f"line {number} is no row of a batch run; choose another file"
                )
            whole += len(line)
            yield row
    if whole < path.stat().st_size:
        os.truncate(path, whole)


def drop_rows(path: Path, what: str, dropped: Callable[[Mapping[str, Any]], bool]) -> None:
    """Replace the file atomically by one without these rows; readers of the old one keep it."""
    with replaced_file(path) as file:
        for row in rows_of(path, what, lambda _: True):
            if not dropped(row):
                file.write(_encode(row))


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Write a new content that replaces the file at the end, with its permissions; a failure changes nothing.
    A symbolic link is kept.
    """
    path = path.resolve()
    part = path.with_name(f"{path.name}.tmp")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _encode(row: Mapping[str, Any]) -> bytes:
    return json_bytes(row) + b"\n"
