"""Makes the rows of a batch's two files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_ends import joined_end
from millstream.batch.rows.output_rows import (
    answer_row,
    error_row,
    failure_row,
    fault_row,
    mismatch_row,
    refusal_row,
    reused_row,
)
from millstream.batch.run.tally import agrees
from millstream.client.session.ended_job import EndedJob
from millstream.errors import JobError, JobFailed, MillstreamError, ProtocolError
from millstream.gateway.batches.records.batch_record import RowKind
from millstream.gateway.cpu_executor import CpuExecutor, UnexpectedError
from millstream.json_bytes import json_bytes
from millstream.openai.answer_body import first_text, schema_error_of
from millstream.wire.messages.job_messages import Result, Usage

_NO_USAGE = Usage()
UNREADABLE = "unreadable_result"


class CloseReason(Enum):
    """The reason why lines that have not ended get no answer: the code and message of their rows."""

    EXPIRED = "batch_expired", "the batch's time was over before this line had its answer"
    CANCELLED = "batch_cancelled", "the batch was cancelled before this line had its answer"


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """One row. `data` is its line in the file, with the line's end; `result` is for the metrics;
    `agrees`: it has the answer that its line expects; None: the line expects none, or has no answer.
    """

    line: int
    kind: RowKind
    data: bytes
    result: str
    usage: Usage = _NO_USAGE
    agrees: bool | None = None

    @property
    def is_answer(self) -> bool:
        return self.kind is RowKind.OUTPUT


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A row with an answer, and its bytes."""

    row: Mapping[str, Any]
    size: int


async def row_of(row: BatchLine, ends: Sequence[EndedJob | JobError], executor: CpuExecutor) -> FinishedRow:
    """Returns the row of a line whose jobs have ended so; a long one is read beside the loop."""
    ended = [end for end in ends if isinstance(end, EndedJob)]
    if not ended:
        return ended_row(row, ends)
    tenant, size = ended[0].record.tenant, sum(end.size for end in ended)
    try:
        return await executor.run(tenant, size, ended_row, row, ends)
    except UnexpectedError as error:
        message = f"reading the stored answer {error}"
        return _failed_row(row, JobFailed(ended[0].record.job_id, UNREADABLE, message))


def ended_row(row: BatchLine, ends: Sequence[EndedJob | JobError]) -> FinishedRow:
    """Returns the row of ended jobs. A cut answer counts as an answer: its choice says that it was cut. One
    whose calls do not fit is an error.
    """
    end = joined_end([_read(ended) if isinstance(ended, EndedJob) else ended for ended in ends])
    if isinstance(end, Result):
        first = next(ended for ended in ends if isinstance(ended, EndedJob))
        if schema_error_of(end):
            data = _encoded(mismatch_row(row, first.record.job_id, end))
            return FinishedRow(row.line, RowKind.ERROR, data, "failed", end.usage)
        return _answered_row(row, answer_row(row, first.record.job_id, end), end.usage)
    return _failed_row(row, end)


def stored_answer(data: bytes) -> StoredAnswer:
    """Reads a row of the output file."""
    row = json.loads(data)
    if "choices" not in row["response"]["body"]:
        raise ValueError("it has no answer")
    return StoredAnswer(row, len(data))


def reused_line(row: BatchLine, answer: StoredAnswer) -> FinishedRow:
    """Returns the row of a line that has the answer of an equal one."""
    return _answered_row(row, reused_row(row, answer.row), _NO_USAGE)


def _answered_row(row: BatchLine, made: Mapping[str, Any], usage: Usage) -> FinishedRow:
    text, expected = first_text(made["response"]["body"]), row.expected
    agreed = None if expected is None else text is not None and agrees(text, expected)
    return FinishedRow(row.line, RowKind.OUTPUT, _encoded(made), "completed", usage, agreed)


def _read(ended: EndedJob) -> Result | JobError:
    try:
        return ended.read()
    except ProtocolError as error:
        problem = f"the stored answer cannot be read: {error}"
        return JobFailed(ended.record.job_id, UNREADABLE, problem)


def _failed_row(row: BatchLine, end: JobError) -> FinishedRow:
    return FinishedRow(row.line, RowKind.ERROR, _encoded(failure_row(row, end.job_id, end)), "failed")


def refused_row(row: BatchLine, error: MillstreamError) -> FinishedRow:
    """Returns the row of a line that the queue does not take."""
    return FinishedRow(row.line, RowKind.ERROR, _encoded(refusal_row(row, error)), "failed")


def faulty_row(line: int, fault: LineFault, data: bytes | None) -> FinishedRow:
    """Row of a line that passed validation on a gateway of another version and fails here."""
    return FinishedRow(line, RowKind.ERROR, _encoded(fault_row(line, fault, data)), "failed")


def closed_row(row: BatchLine, closing: CloseReason) -> FinishedRow:
    code, message = closing.value
    data = _encoded(error_row(row, None, code, message))
    return FinishedRow(row.line, RowKind.ERROR, data, closing.name.lower())


def _encoded(row: Mapping[str, Any]) -> bytes:
    return json_bytes(row) + b"\n"
