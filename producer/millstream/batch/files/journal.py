"""The files that a batch run leaves on disk, from which a later run continues.

A run lives as long as OUT does; if OUT was removed, a new run begins. An OUT named .gz or .zst is written
uncompressed, as OUT.part, and compressed when the run ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from millstream.batch.files.compressed import pack, unpack
from millstream.batch.files.paths import RunPaths
from millstream.batch.files.rowfile import (
    WriteFailed,
    append_to,
    drop_rows,
    row_at,
    rows_of,
    sync_folder,
    write_rows,
    written,
)
from millstream.batch.files.runfile import Begun, RunFile, identity, line_digest_of
from millstream.batch.files.stored_rows import is_answer, is_cut, is_failure, key_of
from millstream.batch.rows import row_digests
from millstream.errors import InvalidRequest

__all__ = ["Journal", "WriteFailed"]

_RowFile = tuple[Path, str, Callable[[Mapping[str, Any]], bool]]  # its name in messages; the check of a row


class Journal:
    """Use as a context manager. Reads the existing files, cuts a torn last line, appends rows."""

    def __init__(
        self, out: Path, model: str | None = None, *, begins: bool = True, copy: BinaryIO | None = None
    ) -> None:
        """`model`: the model of the run, if it is known. `begins` False: only an existing run is continued.
        `copy` receives all rows of OUT, those of earlier runs first.
        """
        place = self.place = RunPaths(out)
        self.out, self.rows, self.errors = place.out, place.rows, place.errors
        self.run_file, self.spool = place.run_file, place.spool
        self.model = model
        self.notes = RunFile(self.run_file)  # the run's id, its jobs, their models, what it has spent
        # custom_ids that have a row (see `identity`), and lines that have an error row and no custom_id of
        # their own; each with the mark of the line that the row belongs to
        self.answered: dict[bytes, bytes] = {}
        self.failed: dict[bytes, bytes] = {}
        self.lines: dict[int, bytes] = {}
        self.refused: set[bytes] = set()  # of `failed`: no worker has seen their lines
        self.cut: set[bytes] = set()  # of `failed`: their answers are incomplete
        self.on_write: Callable[[], None] = lambda: None  # called when rows were written
        self._begins = begins
        self._copy = copy
        self._unpacked = False  # `rows` holds exactly what OUT holds
        self._out: FileIO | None = None
        self._error: FileIO | None = None

    def __enter__(self) -> Journal:
        """Raises InvalidRequest if OUT cannot be written, is in use, or is another kind of file."""
        try:
            self.place.check(begins=self._begins)
            if not self.notes.open():
                problem = "another run is writing this file; wait for it, or choose another file"
                raise InvalidRequest("OUT", str(self.out), problem)
            self._open()
        except OSError as error:
            self.close()
            place = Path(error.filename or self.out).name
            problem = f"cannot be written: {error.strerror}: {place}"
            raise InvalidRequest("OUT", str(self.out), problem) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write everything to disk, and release OUT for other runs. Raises WriteFailed."""
        files = [file for file in (self._error, self._out) if file is not None]
        self._out = self._error = None
        with written(self.out):
            with contextlib.ExitStack() as closing:
                closing.callback(self.notes.close)
                for file in files:
                    closing.enter_context(file)
                for file in files:
                    os.fsync(file.fileno())
                if self._unpacked:
                    self.rows.unlink(missing_ok=True)

    def sync(self) -> None:
        """Write everything so far to disk. May run in a thread. Raises WriteFailed."""
        files = [file.fileno() for file in (self._out, self._error) if file is not None]
        with written(self.out):
            for number in files:
                os.fsync(number)
            sync_folder(self.out.parent)

    def finish(self) -> None:
        """End a run whose lines all have rows: a compressed OUT is made. Raises WriteFailed."""
        self.notes.finish()
        if (packing := self.place.packing) is None or self._unpacked:
            return
        self.sync()
        with written(self.out):
            pack(self.rows, self.out, packing)
            sync_folder(self.out.parent)
            self.rows.unlink()

    def has_id(self, custom_id: str) -> bool:
        key = identity(custom_id)
        return key in self.answered or key in self.failed

    def has_failure(self, custom_id: str) -> bool:
        return identity(custom_id) in self.failed

    def has_line(self, line: int) -> bool:
        return line in self.lines

    def go_on_with(self, source: str, queue: str | None) -> None:
        """Record the input and the queue, for the next run to compare."""
        self.notes.go_on_with(Begun(source, queue, self.model or self.notes.begun.model))

    def cancelled(self, own_ids: Sequence[str]) -> None:
        """Record jobs that need no row: their lines will be submitted as new jobs."""
        self.notes.settle([own_id for own_id in own_ids if own_id in self.notes.left])
        own_ids = [own_id for own_id in own_ids if own_id in self.notes.under_way]
        self.notes.again([line_digest_of(own_id) for own_id in own_ids])
        for own_id in own_ids:
            self.notes.ends(own_id)

    def write(self, answers: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, Any]]) -> int:
        """Append rows; they survive the end of this process. Returns the place of the first answer, for
        `answer_at`. Raises WriteFailed.
        """
        assert self._out is not None, "the journal is open"
        assert self._error is not None, "the journal is open"
        self._unpacked = False
        data = write_rows(self._out, answers)
        if self._copy is not None and data:
            self._copy.write(data)
            self._copy.flush()
        write_rows(self._error, errors)
        self.on_write()
        return self._out.tell() - len(data)

    def answer_at(self, place: int) -> dict[str, Any] | None:
        """The row of OUT that begins there; None if another program has changed OUT. Raises WriteFailed."""
        assert self._out is not None, "the journal is open"
        row = row_at(self._out, place)
        return row if row is not None and is_answer(row) else None

    def replay(self) -> None:
        """Send the existing rows to the copy."""
        if self._copy is not None:
            with self.rows.open("rb") as file:
                shutil.copyfileobj(file, self._copy)
            self._copy.flush()

    def failures(self, *, failed: bool, incomplete: bool) -> set[bytes | int]:
        """Keys of rows of the error file: those of lines that failed, those of incomplete answers."""
        keys: set[bytes | int] = set()
        if failed:
            keys |= self.lines.keys() | (self.failed.keys() - self.cut)
        return keys | self.cut if incomplete else keys

    def retry(self, keys: Collection[bytes | int]) -> None:
        """Remove these rows from the error file, so that their lines are tried again, each as a new job."""
        self._remove(keys, ((self.errors, "error file", is_failure),))

    def drop(self, keys: Collection[bytes | int]) -> None:
        """Remove the rows of these custom_ids and lines, so that their lines are run again."""
        self._unpacked = False
        self._remove(keys, ((self.errors, "error file", is_failure), (self.rows, "OUT", is_answer)))
        self.answered = {key: mark for key, mark in self.answered.items() if key not in keys}

    def _remove(self, keys: Collection[bytes | int], files: Sequence[_RowFile]) -> None:
        again = [
            row_digests.digest_in(row)
            for path, what, ours in files
            for row in rows_of(path, what, ours)
            if row["response"] is not None and key_of(row) in keys
        ]
        self.notes.again([digest for digest in again if digest])
        self.notes.sync()  # before the rows are gone: a line's next job must not be its last one
        for file in (self._out, self._error):
            assert file is not None, "the journal is open"
            file.close()
        self._out = self._error = None
        with written(self.out):
            for path, what, _ in files:
                drop_rows(path, what, lambda row: key_of(row) in keys)
            self._open_files()
        self.lines = {line: mark for line, mark in self.lines.items() if line not in keys}
        self.failed = {key: mark for key, mark in self.failed.items() if key not in keys}
        self.refused &= self.failed.keys()
        self.cut &= self.failed.keys()

    def _open(self) -> None:
        self._check_owner()
        removed = not self.out.exists() and not self.rows.exists()
        if removed and self._begins:
            self._forget()
        if self.rows != self.out and self.out.exists() and not self.rows.exists():
            unpack(self.out, self.rows)
            self._unpacked = True
        self._read()
        if self._begins:
            self._open_files()
            if not self.notes.run:
                self.notes.begin(self.model, self.out.name)

    def _open_files(self) -> None:
        self._out = append_to(self.rows)
        self._error = append_to(self.errors)

    def _read(self) -> None:
        for row in rows_of(self.errors, "error file", is_failure):
            key, mark = key_of(row), row_digests.of_row(row)
            if isinstance(key, int):
                self.lines[key] = mark
            else:
                self.failed[key] = mark
                if row["response"] is None:
                    self.refused.add(key)
                if is_cut(row):
                    self.cut.add(key)
        for row in rows_of(self.rows, "OUT", is_answer):
            self.answered[identity(row["custom_id"])] = row_digests.of_row(row)
        ended = {*self.answered.values(), *self.failed.values()}
        self.notes.read(lambda digest: row_digests.of_digest(digest) in ended)

    def _check_owner(self) -> None:
        """Refuse an OUT whose name differs from the owner's only in its ending: they would share the other
        two files.
        """
        owner = self.notes.owner
        if owner in (None, self.out.name):
            return
        theirs = self.out.parent / str(owner)
        if theirs.exists() or theirs.with_name(f"{owner}.part").exists():
            problem = f"{self.run_file.name} belongs to the run of {owner}; choose a name with another start"
            raise InvalidRequest("OUT", str(self.out), problem)

    def _forget(self) -> None:
        """Remove the files that belonged to a removed OUT."""
        next(rows_of(self.errors, "error file", is_failure), None)  # refuses another kind of file
        self.notes.forget()
        self.errors.unlink(missing_ok=True)
        self.spool.unlink(missing_ok=True)
