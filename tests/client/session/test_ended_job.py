"""An ended job is read whole, or without its answer."""

from __future__ import annotations

import pytest

from millstream.client.session.ended_job import EndedJob, result_without_choices
from millstream.errors import JobFailed, ProtocolError
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.codec import encode, pack
from millstream.wire.messages.job_messages import ErrorInfo, Result, State, Usage
from millstream.wire.messages.record import JOB_FIELDS, job_record
from millstream.wire.messages.script_replies import JobRecord

RESULT = Result(
    state=State.FAILED,
    choices=(Choice(text="a" * 1000),),
    usage=Usage(prompt_tokens=3, output_tokens=2),
    error=ErrorInfo(code="c", message="m"),
    metadata={"a": "b"},
)


def failed(result: bytes | None) -> JobRecord:
    fields = dict.fromkeys(JOB_FIELDS) | {"state": b"failed", "lane": b"batch", "result": result}
    record = job_record("0-a", list(fields.values()))
    assert record is not None
    return record


def test_a_result_is_read_without_its_choices() -> None:
    data = encode(RESULT)
    assert result_without_choices(failed(data)) == RESULT.model_copy(update={"choices": ()})
    assert result_without_choices(failed(None)) is None
    ended = EndedJob(failed(data), ())
    assert ended.size == len(data)
    end = ended.read()
    assert isinstance(end, JobFailed)
    assert (end.reason, end.result) == ("c", RESULT)


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([1]), encode(RESULT) + b"\x00", encode(RESULT)[:-1]])
def test_what_is_no_result_is_refused_both_ways(data: bytes) -> None:
    for read in (EndedJob(failed(data), ()).read, lambda: result_without_choices(failed(data))):
        with pytest.raises(ProtocolError):
            read()
