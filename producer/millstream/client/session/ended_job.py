"""A job that has ended, as the server stores it. Reading it takes time in proportion to its size: tens of
milliseconds for each MiB of log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.streaming.events import error_of_end
from millstream.errors import JobError, ProtocolError
from millstream.wire.messages.codec import MAX_RESULT_BYTES, decode, decode_without
from millstream.wire.messages.job_messages import Result
from millstream.wire.messages.record import partial_result
from millstream.wire.messages.script_replies import JobRecord, LogEntry
from millstream.wire.versions import TAKEN


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A stored end. `log` has the entries of a job without a result."""

    record: JobRecord
    log: Sequence[LogEntry]

    @property
    def size(self) -> int:
        """Number of bytes that `read` decodes."""
        return len(self.record.result or b"") + sum(len(entry.body) for entry in self.log)

    def read(self) -> Result | JobError:
        """Returns the job's outcome; without a stored result it has the log's text. Raises ProtocolError."""
        try:
            result = self._result()
        except ProtocolError as unread:
            raise with_remedy(self.record, unread) from unread
        return error_of_end(self.record.job_id, self.record.state, result.error, result) or result

    def _result(self) -> Result:
        if self.record.result is None:
            return partial_result(self.record, self.log)
        return decode(Result, self.record.result, MAX_RESULT_BYTES)


def result_without_choices(record: JobRecord) -> Result | None:
    """Reads a stored result without its answer, of any length; returns None without a result. Raises
    ProtocolError.
    """
    if record.result is None:
        return None
    return decode_without(Result, "choices", record.result)


def with_remedy(record: JobRecord, error: ProtocolError) -> ProtocolError:
    """`error`, with a remedy if the job is of a version that this client does not read."""
    if record.version in TAKEN:
        return error
    return ProtocolError(
        f"{record.job_id} is of message version {record.version}, and this client takes {TAKEN}: upgrade it "
        f"({error})"
    )
