"""What a batch run leaves on disk, and how a later one goes on from it.

    OUT.jsonl             answers, as rows of the OpenAI Batch output format, in the order in which jobs end
    OUT.errors.jsonl      rows of lines that got none
    OUT.run.jsonl         the run's id, then one line per custom_id that was given another try

The run id makes the job ids: the same line of the same run is the same job, however often it is submitted. It
lives as long as OUT does; where OUT was removed, a new run begins. OUT is locked while the journal is open.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from millstream.batch.faults import FaultCode
from millstream.errors import InvalidRequest, MillstreamError


class WriteFailed(MillstreamError):
    """A file of the run cannot be written any more: the disk is full, or gone."""


class Journal:
    """Use as a context manager. Reads what is there, cuts a torn last line, appends rows."""

    def __init__(self, out: Path, model: str | None = None) -> None:
        """`model`: what the run computes with, where that is known; none goes on with another."""
        self.out = out
        self.model = model
        self.errors = out.with_suffix(".errors.jsonl")
        self.run_file = out.with_suffix(".run.jsonl")
        self.run = ""
        self._ids: set[bytes] = set()  # custom_ids (as digests) that have their answer or their error
        self._lines: set[int] = set()  # lines without a custom_id of their own that have their error
        self._tries: Counter[bytes] = Counter()
        self._out: BinaryIO | None = None
        self._error: BinaryIO | None = None

    def __enter__(self) -> Journal:
        """Raises InvalidRequest where OUT cannot be written, is in use, or is another kind of file."""
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            resuming = self.out.exists()
            self._out = self.out.open("ab")
        except OSError as error:
            raise InvalidRequest("OUT", str(self.out), f"cannot be written: {error.strerror}") from error
        try:
            self._lock()
            self._read(resuming)
            self._error = self.errors.open("ab")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Everything written is on disk afterwards, and OUT is free for another run."""
        for file in (self._error, self._out):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
                file.close()
        self._out = self._error = None

    def has_id(self, custom_id: str) -> bool:
        return identity(custom_id) in self._ids

    def has_line(self, line: int) -> bool:
        return line in self._lines

    def own_id(self, custom_id: str, digest: str) -> str:
        """The job's own id: of this run, this line, and this try."""
        tries = self._tries[identity(custom_id)]
        return f"{self.run}.{digest}" + (f".{tries}" if tries else "")

    def write(self, answers: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; they survive the end of this process from here on. Raises WriteFailed."""
        for file, rows in ((self._out, answers), (self._error, errors)):
            assert file is not None, "the journal is open"
            if data := b"".join(_encode(row) for row in rows):
                try:
                    file.write(data)
                    file.flush()
                except OSError as error:
                    raise WriteFailed(f"{file.name} cannot be written: {error.strerror}") from error

    def retry_failed(self) -> int:
        """Take all rows out of the error file, so that their lines are tried again, each as a new job."""
        assert self._error is not None, "the journal is open"
        count = 0
        for row in _rows(self.errors, "error file"):
            count += 1
            if row["custom_id"] is None or _is_duplicate(row):
                continue
            key = identity(row["custom_id"])
            self._ids.discard(key)
            if row["response"] is not None:  # there is a failed job of the old id
                self._tries[key] += 1
                self._note({"retried": row["custom_id"]})
        self._error.truncate(0)  # only now: an interruption before it repeats the retry, it loses none
        self._lines.clear()
        return count

    def _lock(self) -> None:
        assert self._out is not None
        try:
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidRequest(
                "OUT", str(self.out), "another run is writing this file; wait for it, or choose another file"
            ) from error

    def _read(self, resuming: bool) -> None:
        if resuming:
            for row in _rows(self.out, "OUT", ("response",)):
                self._ids.add(identity(row["custom_id"]))
            self._read_run()
        else:  # what belonged to a removed OUT goes with it
            self.errors.unlink(missing_ok=True)
            self.run_file.unlink(missing_ok=True)
        for row in _rows(self.errors, "error file"):
            if row["custom_id"] is None or _is_duplicate(row):
                self._lines.add(row["error"]["line"])
            else:
                self._ids.add(identity(row["custom_id"]))
        if not self.run:
            self.run = uuid4().hex[:16]
            self._note({"run": self.run, "model": self.model})

    def _read_run(self) -> None:
        for row in _rows(self.run_file, "run file", ("run", "retried")):
            if "retried" in row:
                self._tries[identity(row["retried"])] += 1
                continue
            self.run, begun_with = row["run"], row.get("model")
            if self.model is not None and begun_with is not None and begun_with != self.model:
                problem = f"{self.out} was begun with {begun_with}; go on with that, or choose another OUT"
                raise InvalidRequest("model", self.model, problem)

    def _note(self, row: Mapping[str, Any]) -> None:
        with self.run_file.open("ab") as file:
            file.write(_encode(row))
            file.flush()
            os.fsync(file.fileno())


def _is_duplicate(row: Mapping[str, Any]) -> bool:
    return bool(row["error"]["code"] == FaultCode.DUPLICATE_CUSTOM_ID)


def _rows(path: Path, what: str, marks: Sequence[str] = ("custom_id",)) -> Iterator[dict[str, Any]]:
    """The rows of one of our files, each with one of `marks`; a torn last line is cut off.

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
            if not isinstance(row, dict) or not any(mark in row for mark in marks):
                raise InvalidRequest(
                    what, str(path), f"line {number} is no row of a batch run; choose another file"
                )
            whole += len(line)
            yield row
    if whole < path.stat().st_size:
        os.truncate(path, whole)


def _encode(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def identity(custom_id: str) -> bytes:
    """What stands for a custom_id in memory, however long it is."""
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
