"""What a batch run leaves on disk, and how a later one goes on from it.

    OUT.jsonl             answers, as rows of the OpenAI Batch output format, in the order in which jobs end
    OUT.errors.jsonl      rows of lines that got none
    OUT.run.jsonl         the run's id, then one line per custom_id that was given another try

The run id makes the job ids: the same line of the same run is the same job, however often it is submitted. It
lives as long as OUT does; where OUT was removed, a new run begins. OUT is locked while the journal is open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from millstream.batch.faults import FaultCode
from millstream.errors import InvalidRequest, MillstreamError


class WriteFailed(MillstreamError):
    """A file of the run cannot be written any more: the disk is full, or gone."""


class Journal:
    """Use as a context manager. Reads what is there, cuts a torn last line, appends rows."""

    def __init__(self, out: Path, model: str | None = None) -> None:
        """`model`: what the run computes with, where that is known; none goes on with another."""
        if not out.name:
            raise InvalidRequest("OUT", str(out), "names no file")
        self.out = out
        self.model = model
        self.errors = out.with_suffix(".errors.jsonl")
        self.run_file = out.with_suffix(".run.jsonl")
        self.run = ""
        self._begun_with: str | None = None  # the model of the run that is gone on with
        self._answered: set[bytes] = set()  # custom_ids (as digests) in OUT
        self._failed: set[bytes] = set()  # custom_ids in the error file
        self._lines: set[int] = set()  # lines without a custom_id of their own that have their error
        self._tries: Counter[bytes] = Counter()
        self._out: FileIO | None = None
        self._error: FileIO | None = None

    def __enter__(self) -> Journal:
        """Raises InvalidRequest where OUT cannot be written, is in use, or is another kind of file."""
        try:
            if self.out.exists() and not self.out.is_file() and not self.out.is_dir():
                raise InvalidRequest("OUT", str(self.out), "is no regular file")
            if self.out.parent.is_file():
                raise InvalidRequest("OUT", str(self.out), f"{self.out.parent} is no folder")
            self.out.parent.mkdir(parents=True, exist_ok=True)
            begins = self._open_out()
            self._lock()
            self._read(begins=begins)
            self._error = _append_to(self.errors)
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
                for file in files:
                    closing.enter_context(file)
                for file in files:
                    os.fsync(file.fileno())
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Everything written so far is on disk afterwards. May run in a thread. Raises WriteFailed."""
        files = [file.fileno() for file in (self._out, self._error) if file is not None]
        try:
            for number in files:
                os.fsync(number)
            _sync_folder(self.out.parent)
        except OSError as error:
            raise WriteFailed(f"{self.out} cannot be written: {error.strerror}") from error

    def has_id(self, custom_id: str) -> bool:
        key = identity(custom_id)
        return key in self._answered or key in self._failed

    def has_failure(self, custom_id: str) -> bool:
        return identity(custom_id) in self._failed

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
                _write(file, data)

    def retry_failed(self) -> int:
        """Take all rows out of the error file, so that their lines are tried again, each as a new job."""
        assert self._error is not None, "the journal is open"
        count, retried = 0, []
        for row in _rows(self.errors, "error file", _is_failure):
            count += 1
            # where there is no response, no job of the old id has failed
            if row["custom_id"] is not None and row["response"] is not None and not _is_duplicate(row):
                retried.append(row["custom_id"])
        if retried:
            self._note(*({"retried": custom_id} for custom_id in retried))
            self._tries.update(map(identity, retried))
        self._error.truncate(0)  # only now: an interruption before it repeats the retry, it loses none
        self._failed.clear()
        self._lines.clear()
        return count

    def _open_out(self) -> bool:
        """Whether a new OUT was made: a look before would not tell, another run may begin just now."""
        try:
            self._out = _append_to(self.out, os.O_EXCL)
        except FileExistsError:
            self._out = _append_to(self.out)
            return False
        return True

    def _lock(self) -> None:
        assert self._out is not None
        try:
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidRequest(
                "OUT", str(self.out), "another run is writing this file; wait for it, or choose another file"
            ) from error

    def _read(self, *, begins: bool) -> None:
        """`begins`: OUT is new, and what belonged to a removed one goes with it."""
        if begins:
            self._forget()
        for row in _rows(self.run_file, "run file", _is_note):
            self._take_note(row)
        for row in _rows(self.errors, "error file", _is_failure):
            if row["custom_id"] is None or _is_duplicate(row):
                self._lines.add(row["error"]["line"])
            else:
                self._failed.add(identity(row["custom_id"]))
        for row in _rows(self.out, "OUT", _is_answer):
            self._answered.add(identity(row["custom_id"]))
        if self.model is not None and self._begun_with not in (None, self.model):
            begun_with = f"{self._begun_with!s:.200}"
            problem = f"{self.out} was begun with {begun_with}; go on with that, or choose another OUT"
            raise InvalidRequest("model", self.model, problem)
        if not self.run:
            self.run = uuid4().hex[:16]
            self._note({"run": self.run, "model": self.model, "out": self.out.name})

    def _take_note(self, row: Mapping[str, Any]) -> None:
        if "retried" in row:
            self._tries[identity(row["retried"])] += 1
            return
        self._check_owner(row)
        self.run, self._begun_with = row["run"], row.get("model")

    def _check_owner(self, row: Mapping[str, Any]) -> None:
        """OUTs that differ in their ending only would share the other two files."""
        owner = row.get("out", self.out.name)
        if owner != self.out.name and (self.out.parent / owner).exists():
            problem = f"{self.run_file.name} belongs to the run of {owner}; choose a name with another start"
            raise InvalidRequest("OUT", str(self.out), problem)

    def _forget(self) -> None:
        """At once: where this process dies before, the next one takes these files for its own run's."""
        for row in _rows(self.run_file, "run file", _is_note):
            self._check_owner(row)
        next(_rows(self.errors, "error file", _is_failure), None)  # refuses another kind of file
        self.errors.unlink(missing_ok=True)
        self.run_file.unlink(missing_ok=True)

    def _note(self, *rows: Mapping[str, Any]) -> None:
        try:
            with _append_to(self.run_file) as file:
                _write(file, b"".join(map(_encode, rows)))
                os.fsync(file.fileno())
        except OSError as error:
            raise WriteFailed(f"{self.run_file} cannot be written: {error.strerror}") from error


def _append_to(path: Path, more_flags: int = 0) -> FileIO:
    """Unbuffered: what could not be written is not tried again by closing the file."""
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | more_flags, 0o666))


def _sync_folder(path: Path) -> None:
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


def _write(file: FileIO, data: bytes) -> None:
    """All of it or, where that fails, nothing: the next row must not follow half of one."""
    before = os.fstat(file.fileno()).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            file.truncate(before)
        raise WriteFailed(f"{os.fsdecode(file.name)} cannot be written: {error.strerror}") from error


def _is_answer(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("custom_id"), str) and bool(row.get("response")) and row.get("error") is None


def _is_failure(row: Mapping[str, Any]) -> bool:
    error, named = row.get("error"), isinstance(row.get("custom_id", 0), str | None)
    placed = isinstance(error, dict) and "code" in error and isinstance(error.get("line"), int)
    return named and placed and "response" in row


def _is_note(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("run", row.get("retried")), str) and isinstance(row.get("out", ""), str)


def _is_duplicate(row: Mapping[str, Any]) -> bool:
    return bool(row["error"]["code"] == FaultCode.DUPLICATE_CUSTOM_ID)


def _rows(path: Path, what: str, ours: Callable[[Mapping[str, Any]], bool]) -> Iterator[dict[str, Any]]:
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


# To many readers these characters end a line, too; in JSON they stand in texts only, and may be escaped.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def _encode(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode() + b"\n"


def identity(custom_id: str) -> bytes:
    """What stands for a custom_id in memory, however long it is."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
