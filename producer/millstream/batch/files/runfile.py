"""OUT.run.jsonl: the run's id, what it runs with, and the jobs that it has submitted.

    {"run", "model", "out"}     the first row
    {"in", "queue", "model"}    what the run reads and where it sends its lines, whenever that changes
    {"queue", "model", "model_digest"}
                                the model that answers on this queue of a server, once it is known, and
                                whenever the run goes on with another one
    {"queue", "jobs"}           written before these jobs are submitted, as `<digest>` or `<digest>.<try>`;
                                all jobs of a line with a list of prompts as `<digest>.<try>+<number>`
    {"again": [<digest>]}       the next jobs of these lines are new ones: their last ones were cancelled, or
                                their rows dropped, or are tried again
    {"queue", "left"}           jobs, as whole own ids, that no line asks for (OUT was removed, …)
    {"settled": [<own id>]}     they were cancelled, or had ended
    {"seconds", "rows", "output_tokens"}
                                what was spent and got since the row before of this kind, see `Spent`
    {"finished": true}          all jobs so far have ended

The run id makes the job ids: the same line of the same run is the same job, however often it is submitted.
The file's lock is the run's: it is never replaced by another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from millstream.batch.files.rowfile import append_to, rows_of, write_rows, written
from millstream.batch.files.sent_jobs import SentJobs
from millstream.batch.files.spent import Spent
from millstream.openai.prompt_list import listed_id
from millstream.wire.state.queue_info import ModelIdentity

CHUNK_JOBS = 256  # in one row
_LONGEST_NAME_BYTES = 255  # of a file


@dataclass(frozen=True, slots=True)
class Begun:
    """`source` None: the run has not recorded its input and queue yet."""

    source: str | None = None
    queue: str | None = None  # of all lines; None: each line's own
    model: str | None = None  # of the command's own worker; None: a server's, see `RunFile.models`


class RunFile:
    """Locked from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = ""
        self.begun = Begun()
        self.models: dict[str, ModelIdentity] = {}  # by queue: the model that answers, if it is known
        # own ids of jobs without a row, each with its queue; those of a list of prompts by their one name
        self.under_way: dict[str, str] = {}
        self.left: dict[str, str] = {}  # the same of jobs that no line asks for
        self.sent = SentJobs()  # which jobs of `under_way` the server has
        self.spent = Spent()  # by the runs so far
        self._unfinished = False  # a jobs row follows the last row that says that all have ended
        self._again: Counter[str] = Counter()
        self._file: FileIO | None = None

    def open(self) -> bool:
        """Lock and open the file; False if another run has it. Raises OSError."""
        self._file = append_to(self.path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            self._file = None
        return self._file is not None

    def close(self) -> None:
        """Unlock the file. An empty one is removed: it existed only for its lock."""
        if self._file is None:
            return
        if not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()
        self._file = None

    @property
    def owner(self) -> str | None:
        """The name of the OUT that the run was begun with."""
        for row in rows_of(self.path, "run file", _is_note):
            return row.get("out")
        return None

    def forget(self) -> None:
        """Begin another run after the removal of OUT; the jobs of this one become `left`."""
        assert self._file is not None, "the file is open"
        self.read(lambda _: False)  # refuses another kind of file
        self._file.truncate(0)
        self.left.update(self.under_way)
        self.under_way.clear()
        self.sent = SentJobs()
        self._again.clear()
        self.models.clear()
        self.run, self.begun, self.spent, self._unfinished = "", Begun(), Spent(), False

    def read(self, ended: Callable[[str], bool]) -> None:
        """Read the rows. `ended` returns whether the line of a digest has its row."""
        last: dict[str, str] = {}  # by digest: the own id of a job without a row
        for row in rows_of(self.path, "run file", _is_note):
            if "model_digest" in row:
                self.models[row["queue"]] = ModelIdentity(row["model"], row["model_digest"])
            elif "jobs" in row:
                for job in row["jobs"]:
                    self._take_job(job, row["queue"], ended, last)
            elif "again" in row:
                self._again.update(row["again"])
                for digest in row["again"]:
                    self.ends(last.pop(digest, ""))
            elif "left" in row:
                self.left.update(dict.fromkeys(row["left"], row["queue"]))
            elif "settled" in row:
                for own_id in row["settled"]:
                    self.left.pop(own_id, None)
            elif "seconds" in row:
                self.spent += Spent.of(row)
            elif "finished" in row:
                self._unfinished = False
                last.clear()
                self.under_way.clear()
            else:
                self.run = row.get("run", self.run)
                self.begun = Begun(row.get("in"), row.get("queue"), row.get("model"))

    def _take_job(self, job: str, queue: str, ended: Callable[[str], bool], last: dict[str, str]) -> None:
        digest = job.partition(".")[0]
        self._unfinished = True
        if not ended(digest):
            last[digest] = f"{self.run}.{job}"
            self.under_way[last[digest]] = queue

    def begin(self, model: str | None, out: str) -> None:
        self.run = uuid4().hex[:16]
        self.begun = Begun(model=model)
        self._write({"run": self.run, "model": model, "out": out}, *_left_rows(self.left), sync=True)

    def go_on_with(self, begun: Begun) -> None:
        """Record the input that the run reads from now on, and the queue that its lines go to."""
        if begun != self.begun:
            self.begun = begun
            self._write({"in": begun.source, "queue": begun.queue, "model": begun.model}, sync=True)

    def serves(self, queue: str, model: ModelIdentity) -> None:
        """Record the model that answers on the queue from now on, if it is known."""
        if model.digest and (queue not in self.models or model.is_other(self.models[queue])):
            self.models[queue] = model
            note = {"queue": queue, "model": model.name, "model_digest": model.digest}
            self._write(note, sync=True)

    def own_id(self, digest: str, prompts: int = 1) -> str:
        """The job's own id, which follows from the run, the line and the number of the try; of so many
        prompts the name of all their jobs, as `listed_id` makes it.
        """
        tries = self._again[digest]
        named = f"{self.run}.{digest}" + (f".{tries}" if tries or prompts > 1 else "")
        return listed_id(named, prompts)

    def submits(self, queue: str, own_ids: Sequence[str]) -> None:
        """Record jobs before they are submitted: a killed run leaves no unknown job."""
        jobs = [own_id.removeprefix(f"{self.run}.") for own_id in own_ids]
        self._write({"queue": queue, "jobs": jobs})
        self._unfinished = True
        self.sent.intends(own_id for own_id in own_ids if own_id not in self.under_way)
        self.under_way.update((own_id, queue) for own_id in own_ids)

    def ends(self, own_id: str) -> None:
        self.under_way.pop(own_id, None)
        self.sent.ends(own_id)

    def spends(self, spent: Spent) -> None:
        """Add what was spent and got."""
        self.spent += spent
        self._write(spent.note())

    def leave(self) -> None:
        """Give up the jobs under way: their lines get new ones."""
        jobs = dict(self.under_way)
        self._write(*_left_rows(jobs), sync=True)  # first: a kill in between then loses no job
        self.again([line_digest_of(own_id) for own_id in jobs])
        self.sync()
        self.left.update(jobs)
        self.under_way.clear()

    def settle(self, own_ids: Sequence[str]) -> None:
        """Record that jobs of `left` will not run, or have ended."""
        for start in range(0, len(own_ids), CHUNK_JOBS):
            self._write({"settled": own_ids[start : start + CHUNK_JOBS]})
        for own_id in own_ids:
            self.left.pop(own_id, None)

    def finish(self) -> None:
        """Record that no jobs are under way: a later removal of OUT leaves nothing to cancel."""
        if self._unfinished and not self.under_way:
            self._write({"finished": True})
            self._unfinished = False

    def again(self, digests: Sequence[str]) -> None:
        """Record that the next jobs of these lines are new ones."""
        for start in range(0, len(digests), CHUNK_JOBS):
            self._write({"again": digests[start : start + CHUNK_JOBS]})
        self._again.update(digests)

    def _write(self, *rows: Mapping[str, Any], sync: bool = False) -> None:
        """Raises WriteFailed."""
        assert self._file is not None, "the file is open"
        write_rows(self._file, rows)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Raises WriteFailed."""
        assert self._file is not None, "the file is open"
        with written(self.path):
            os.fsync(self._file.fileno())


def source_of(path: Path) -> str | None:
    """The input that the run of this file reads, as the file has it now: a run may be writing it, or there is
    none. Changes nothing.
    """
    found = None
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        for line in file:
            if b'"in"' in line and _is_note(row := json.loads(line)) and "in" in row:
                found = str(row["in"])
    return found


def line_digest_of(own_id: str) -> str:
    """The digest of the job's line."""
    return own_id.split(".")[1]


def _left_rows(jobs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for queue in sorted(set(jobs.values())):
        own_ids = [own_id for own_id, its in jobs.items() if its == queue]
        for start in range(0, len(own_ids), CHUNK_JOBS):
            yield {"queue": queue, "left": own_ids[start : start + CHUNK_JOBS]}


def _is_note(row: Mapping[str, Any]) -> bool:
    if "model_digest" in row:
        return _are_texts([row.get("queue"), row.get("model"), row["model_digest"]])
    if "left" in row:
        return isinstance(row.get("queue"), str) and _are_texts(row["left"])
    if "settled" in row:
        return _are_texts(row["settled"])
    if "seconds" in row:
        return Spent.is_note(row)
    if "finished" in row:
        return row["finished"] is True
    if "jobs" in row:
        return isinstance(row.get("queue"), str) and _are_texts(row["jobs"])
    if "again" in row:
        return _are_texts(row["again"])
    if "run" in row:
        return isinstance(row["run"], str) and ("out" not in row or _is_file_name(row["out"]))
    return isinstance(row.get("in"), str) and isinstance(row.get("queue", ""), str | None)


def _is_file_name(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value or Path(value).name != value:
        return False
    try:
        return len(os.fsencode(value)) <= _LONGEST_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def identity(custom_id: str) -> bytes:
    """A short digest of a custom_id, to be kept in memory."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
