"""Files of JSON rows that a run appends to: whole rows or none, read back after any crash."""

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


class WriteFailed(MillstreamError):
    """A file of the run cannot be written any more: the disk is full, or gone."""


def append_to(path: Path) -> FileIO:
    """Unbuffered: what could not be written is not tried again by closing the file."""
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o666))


def sync_folder(path: Path) -> None:
    """A new file's name is on disk only with its folder. Where that cannot be said to the file system (many
    network ones, FUSE), or the folder is not ours to read, the file's own fsync has to do."""
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
    """All of them or, where that fails, nothing: the next row must not follow half of one.

    Returns what was written. Raises WriteFailed.
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


def rows_of(path: Path, what: str, ours: Callable[[Mapping[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    """The rows of one of our files; a torn last line is cut off.

    Raises InvalidRequest at anything else, before anything is changed.
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
    """Replace the file by one without these rows, at once; readers of the old one keep it."""
    with replacing(path) as file:
        for row in rows_of(path, what, lambda _: True):
            if not dropped(row):
                file.write(_encode(row))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """What is written takes the file's place at the end, with its permissions; after a failure nothing has
    changed. A link stays one."""
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


# To many readers these characters end a line, too; in JSON they stand in texts only, and may be escaped.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def _encode(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    # the bytes of a path that is not UTF-8 are half surrogates, which JSON can escape
    return text.encode("utf-8", "backslashreplace") + b"\n"
