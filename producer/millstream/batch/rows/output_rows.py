"""Makes rows of the output file from results, and of the error file from faults, in OpenAI's Batch format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.batch.rows import row_digests
from millstream.batch.rows.batch_lines import BatchLine, BatchRow
from millstream.batch.rows.faults import INCOMPLETE_OUTPUT, FaultCode, LineFault
from millstream.errors import InvalidRequest, JobCancelled, JobError, JobExpired, JobFailed, MillstreamError
from millstream.openai.answer_body import answer_body, reused_body
from millstream.wire.messages.job_messages import Result

OK = 200
_NESTED = "sampling."  # the worker names the fields of the queue's requests, which bodies have at their top


def answer_row(row: BatchRow, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job, as the API's endpoint would have answered."""
    return {
        "id": row_digests.row_id(row.digest),
        "custom_id": row.custom_id,
        "response": _response(row, job_id, result),
        "error": None,
    }


def reused_row(row: BatchLine, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a line that takes another row's answer: it has no job of its own, and names that row's."""
    response = {name: value for name, value in answer["response"].items() if name != "ignored"}
    body = reused_body(response["body"], row.request.metadata)
    return {
        "id": row_digests.row_id(row.digest),
        "custom_id": row.custom_id,
        "response": {**response, "body": body, **_ignored(row)},
        "error": None,
    }


def is_incomplete(result: Result) -> bool:
    """True if a choice is not the whole answer that its response format asks for."""
    return any(choice.complete is False for choice in result.choices)


def incomplete_row(row: BatchRow, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job with an incomplete choice; its response has all choices."""
    message = (
        f"line {row.line}: the answer was cut before it was whole, by max_tokens, the end of the context "
        "or a stop string; allow more tokens, and try it with --retry-incomplete"
    )
    return _error_row(row, _response(row, job_id, result), INCOMPLETE_OUTPUT, message, None)


def _response(row: BatchRow, job_id: str, result: Result) -> dict[str, Any]:
    body = answer_body(row.endpoint, job_id, result)
    return {"status_code": OK, "request_id": job_id, "body": body, **_ignored(row)}


def _ignored(row: BatchRow) -> dict[str, list[str]]:
    """The sign that a POST's answer has in a header."""
    return {"ignored": list(row.ignored)} if row.ignored else {}


def failure_row(row: BatchRow, job_id: str, end: JobError) -> dict[str, Any]:
    """The row of a job that was accepted and ended without a full answer."""
    code, status = _ended(end)
    result = getattr(end, "result", None)
    field = None
    if isinstance(result, Result) and result.error and result.error.field:
        field, status = f"body.{result.error.field.removeprefix(_NESTED)}", 400
    kind = "invalid_request_error" if status == 400 else "server_error"
    inner = {"message": str(end), "type": kind, "param": field, "code": code}
    response = {"status_code": status, "request_id": job_id, "body": {"error": inner}}
    return _error_row(row, response, code, str(end), field)


def refusal_row(row: BatchRow, error: MillstreamError) -> dict[str, Any]:
    """The row of a valid line that the client refused to submit: too large, or its id is taken."""
    field = f"body.{error.field}" if isinstance(error, InvalidRequest) else None
    code = FaultCode.INVALID_FIELD if field else "conflict"
    return _error_row(row, None, code, f"line {row.line}: {error}", field)


def _error_row(
    row: BatchRow, response: dict[str, Any] | None, code: str, message: str, field: str | None
) -> dict[str, Any]:
    return {
        "id": row_digests.row_id(row.digest),
        "custom_id": row.custom_id,
        "response": response,
        "error": {"code": code, "message": message, "param": field, "line": row.line},
    }


def _ended(end: JobError) -> tuple[str, int]:
    """The error's code, and the HTTP status that an API would have returned."""
    match end:
        case JobFailed():
            return end.reason, 500
        case JobCancelled():
            return "cancelled", 409
        case JobExpired():
            return "expired", 408
        case _:
            return "not_found", 404


def fault_row(line: int, fault: LineFault, data: bytes | None = None) -> dict[str, Any]:
    """The row of a line that was never submitted; `data`: the line's bytes."""
    return {
        "id": row_digests.fault_id(line, data),
        "custom_id": fault.custom_id,
        "response": None,
        "error": {
            "code": fault.code,
            "message": f"line {line}: {fault.message}",
            "param": fault.field,
            "line": line,
        },
    }
