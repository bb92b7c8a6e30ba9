"""What a batch run leaves on disk, and how a later one goes on from it.

A run lives as long as OUT does; where OUT was removed, a new run begins. An OUT named .gz or .zst is written
plain, as OUT.part, and compressed when the run ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from millstream.batch.files.compressed import pack, unpack
from millstream.batch.files.paths import RunPaths
from millstream.batch.files.rowfile import WriteFailed, append_to, drop_rows, rows_of, sync_folder, write_rows
from millstream.batch.files.runfile import Begun, RunFile, identity, line_digest_of
from millstream.batch.files.written import is_answer, is_failure, key_of
from millstream.batch.rows import marks
from millstream.errors import InvalidRequest

__all__ = ["Journal", "WriteFailed"]


class Journal:
    """Use as a context manager. Reads what is there, cuts a torn last line, appends rows."""

    def __init__(
        self, out: Path, model: str | None = None, *, begins: bool = True, copy: BinaryIO | None = None
    ) -> None:
        """`model`: what the run computes with, where that is known. `begins` False: only a run that is there
        is taken up. `copy` gets all rows of OUT, those of earlier runs first."""
        place = self.place = RunPaths(out)
        self.out, self.rows, self.errors = place.out, place.rows, place.errors
        self.run_file, self.spool = place.run_file, place.spool
        self.model = model
        # custom_ids that have a row (see `identity`), and lines that have an error row and no custom_id of
        # their own; each with the mark of the line as it was answered
        self.answered: dict[bytes, bytes] = {}
        self.failed: dict[bytes, bytes] = {}
        self.lines: dict[int, bytes] = {}
        self.refused: set[bytes] = set()  # of `failed`: no worker has seen their lines
        self._notes = RunFile(self.run_file)
        self._begins = begins
        self._copy = copy
        self._unpacked = False  # `rows` holds what OUT holds, and nothing more
        self._out: FileIO | None = None
        self._error: FileIO | None = None

    def __enter__(self) -> Journal:
        """Raises InvalidRequest where OUT cannot be written, is in use, or is another kind of file."""
        try:
            self.place.check(begins=self._begins)
            if not self._notes.open():
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
        """Everything written is on disk afterwards, and OUT is free for another run. Raises WriteFailed."""
        files = [file for file in (self._error, self._out) if file is not None]
        self._out = self._error = None
        try:
            with contextlib.ExitStack() as closing:
                closing.callback(self._notes.close)
                for file in files:
                    closing.enter_context(file)
                for file in files:
                    os.fsync(file.fileno())
                if self._unpacked:
                    self.rows.unlink(missing_ok=True)
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Everything written so far is on disk afterwards. May run in a thread. Raises WriteFailed."""
        files = [file.fileno() for file in (self._out, self._error) if file is not None]
        try:
            for number in files:
                os.fsync(number)
            sync_folder(self.out.parent)
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error

    def finish(self) -> None:
        """All lines have their row: a compressed OUT is made of them. Raises WriteFailed."""
        self._notes.finish()
        if (packing := self.place.packing) is None or self._unpacked:
            return
        self.sync()
        try:
            pack(self.rows, self.out, packing)
            sync_folder(self.out.parent)
            self.rows.unlink()
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error

    @property
    def run(self) -> str:
        return self._notes.run

    @property
    def begun(self) -> Begun:
        return self._notes.begun

    @property
    def under_way(self) -> Mapping[str, str]:
        """Own ids of jobs that were submitted, or were about to be, and have no row; each with its queue."""
        return self._notes.under_way

    @property
    def left(self) -> Mapping[str, str]:
        """Own ids of jobs that no line asks for, which are to be cancelled; each with its queue."""
        return self._notes.left

    def leave_jobs(self) -> None:
        """Of the jobs under way nobody wants the answers: their lines get new ones. Raises WriteFailed."""
        self._notes.leave()

    def has_id(self, custom_id: str) -> bool:
        key = identity(custom_id)
        return key in self.answered or key in self.failed

    def has_failure(self, custom_id: str) -> bool:
        return identity(custom_id) in self.failed

    def has_line(self, line: int) -> bool:
        return line in self.lines

    def own_id(self, custom_id: str, digest: str) -> str:
        """The job's own id: of this run, this line, and this try."""
        return self._notes.own_id(custom_id, digest)

    def go_on_with(self, source: str, queue: str | None) -> None:
        """Remember what is read and where lines are sent, for the next run to compare."""
        self._notes.go_on_with(Begun(source, queue, self.model or self.begun.model))

    def submits(self, queue: str, own_ids: Sequence[str]) -> None:
        """Before they are submitted: a run that is killed leaves no job that nobody knows."""
        self._notes.submits(queue, own_ids)

    def ends(self, own_id: str) -> None:
        """Its row was written."""
        self._notes.ends(own_id)

    def cancelled(self, own_ids: Sequence[str]) -> None:
        """They need no row: their lines will be submitted as new jobs."""
        self._notes.settle([own_id for own_id in own_ids if own_id in self._notes.left])
        own_ids = [own_id for own_id in own_ids if own_id in self._notes.under_way]
        self._notes.again([line_digest_of(own_id) for own_id in own_ids])
        for own_id in own_ids:
            self._notes.ends(own_id)

    def write(self, answers: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; they survive the end of this process from here on. Raises WriteFailed."""
        assert self._out is not None, "the journal is open"
        assert self._error is not None, "the journal is open"
        self._unpacked = False
        data = write_rows(self._out, answers)
        if self._copy is not None and data:
            self._copy.write(data)
            self._copy.flush()
        write_rows(self._error, errors)

    def replay(self) -> None:
        """Send the rows that are there to the copy."""
        if self._copy is not None:
            with self.rows.open("rb") as file:
                shutil.copyfileobj(file, self._copy)
            self._copy.flush()

    def retry_failed(self) -> int:
        """Take all rows out of the error file, so that their lines are tried again, each as a new job."""
        assert self._error is not None, "the journal is open"
        found = rows_of(self.errors, "error file", is_failure)
        rows = [(row["response"] is not None, marks.digest_in(row)) for row in found]
        # only where there is a response has a job of the old id failed
        self._notes.again([digest for ran, digest in rows if ran and digest])
        self._notes.sync()
        self._error.truncate(0)  # only now: an interruption before it repeats the retry, it loses none
        self.failed.clear()
        self.refused.clear()
        self.lines.clear()
        return len(rows)

    def drop(self, keys: Iterable[bytes | int]) -> None:
        """Take the rows of these custom_ids and lines out, so that their lines are answered anew."""
        dropped = set(keys)
        again: list[str] = []
        for path, what, ours in ((self.errors, "error file", is_failure), (self.rows, "OUT", is_answer)):
            again += [
                marks.digest_in(row)
                for row in rows_of(path, what, ours)
                if row["response"] is not None and key_of(row) in dropped
            ]
        self._notes.again([digest for digest in again if digest])
        self._notes.sync()  # before the rows are gone: a line's next job must not be its last one
        self._unpacked = False
        for file in (self._out, self._error):
            assert file is not None, "the journal is open"
            file.close()
        self._out = self._error = None
        try:
            drop_rows(self.errors, "error file", lambda row: key_of(row) in dropped)
            drop_rows(self.rows, "OUT", lambda row: key_of(row) in dropped)
            self._open_files()
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error
        for key in dropped:
            if isinstance(key, int):
                self.lines.pop(key, None)
            else:
                self.answered.pop(key, None)
                self.failed.pop(key, None)
                self.refused.discard(key)

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
            if not self.run:
                self._notes.begin(self.model, self.out.name)

    def _open_files(self) -> None:
        self._out = append_to(self.rows)
        self._error = append_to(self.errors)

    def _read(self) -> None:
        for row in rows_of(self.errors, "error file", is_failure):
            key, mark = key_of(row), marks.of_row(row)
            if isinstance(key, int):
                self.lines[key] = mark
            else:
                self.failed[key] = mark
                if row["response"] is None:
                    self.refused.add(key)
        for row in rows_of(self.rows, "OUT", is_answer):
            self.answered[identity(row["custom_id"])] = marks.of_row(row)
        ended = {*self.answered.values(), *self.failed.values()}
        self._notes.read(lambda digest: marks.of_digest(digest) in ended)

    def _check_owner(self) -> None:
        """OUTs that differ in their ending only would share the other two files."""
        owner = self._notes.owner
        if owner in (None, self.out.name):
            return
        theirs = self.out.parent / str(owner)
        if theirs.exists() or theirs.with_name(f"{owner}.part").exists():
            problem = f"{self.run_file.name} belongs to the run of {owner}; choose a name with another start"
            raise InvalidRequest("OUT", str(self.out), problem)

    def _forget(self) -> None:
        """What belonged to a removed OUT goes with it."""
        next(rows_of(self.errors, "error file", is_failure), None)  # refuses another kind of file
        self._notes.forget()
        self.errors.unlink(missing_ok=True)
        self.spool.unlink(missing_ok=True)
