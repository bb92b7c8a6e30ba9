"""Makes rows of the output file from results, and of the error file from faults, in OpenAI's Batch format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.batch.rows import row_digests
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import INCOMPLETE_OUTPUT, SCHEMA_MISMATCH, FaultCode, LineFault
from millstream.errors import InvalidRequest, JobCancelled, JobError, JobExpired, JobFailed, MillstreamError
from millstream.openai.answer_body import answer_body, reused_body, schema_error_of
from millstream.openai.api_error import ApiError, api_error, failure
from millstream.openai.prompt_list import error_as_sent
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.job_messages import Result

OK = 200


def answer_row(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job, as the API's endpoint would have answered."""
    return _row(row, _response(row, job_id, result))


def reused_row(row: BatchLine, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a line that takes another row's answer: it has no job of its own, and names that row's."""
    response = {name: value for name, value in answer["response"].items() if name != "ignored"}
    body = reused_body(response["body"], row.metadata)
    return _row(row, {**response, "body": body, **_ignored(row)})


def is_incomplete(result: Result) -> bool:
    """True if a choice is not the whole answer that its response format asks for."""
    return any(choice.complete is False for choice in result.choices)


def incomplete_row(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job with an incomplete choice; its response has all choices."""
    message = (
        f"line {row.line}: the answer was cut before it was whole, by max_tokens, the end of the context "
        "or a stop string; allow more tokens, and try it with --retry-incomplete"
    )
    return error_row(row, _response(row, job_id, result), INCOMPLETE_OUTPUT, message)


def mismatch_row(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job with calls that do not fit; its response has them."""
    message = f"line {row.line}: {schema_error_of(result)}; the call is in the response, try it again"
    return error_row(row, _response(row, job_id, result), SCHEMA_MISMATCH, message)


def _response(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    body = answer_body(row.endpoint, job_id, result)
    return {"status_code": OK, "request_id": job_id, "body": body, **_ignored(row)}


def _ignored(row: BatchLine) -> dict[str, list[str]]:
    """The sign that a POST's answer has in a header."""
    return {"ignored": list(row.ignored)} if row.ignored else {}


def failure_row(row: BatchLine, job_id: str, end: JobError) -> dict[str, Any]:
    """The row of a job that was accepted and ended without a full answer. Its response is that of a POST."""
    told = _told(row, end)
    response = {"status_code": told.status, "request_id": job_id, "body": told.body()}
    field = f"body.{told.param}" if told.param else None
    return error_row(row, response, told.code, told.message, field)


def refusal_row(row: BatchLine, error: MillstreamError) -> dict[str, Any]:
    """The row of a valid line that the client refused to submit: too large, its id is taken, or
    the queue's model reads no images.
    """
    field = f"body.{error.field}" if isinstance(error, InvalidRequest) else None
    code = FaultCode.INVALID_FIELD if field else "conflict"
    code = error.code if isinstance(error, UnsupportedField) else code
    return error_row(row, None, code, f"line {row.line}: {error}", field)


def error_row(
    row: BatchLine, response: dict[str, Any] | None, code: str | None, message: str, field: str | None = None
) -> dict[str, Any]:
    return _row(row, response, {"code": code, "message": message, "param": field, "line": row.line})


def _row(
    row: BatchLine, response: dict[str, Any] | None, error: dict[str, Any] | None = None
) -> dict[str, Any]:
    id = row_digests.row_id(row.digest)
    return {"id": id, "custom_id": row.custom_id, "response": response, "error": error}


def _told(row: BatchLine, end: JobError) -> ApiError:
    """The error as the API answers it; ends that only a batch's lines have name the job."""
    match end:
        case JobFailed() if isinstance(end.result, Result) and end.result.error is not None:
            return failure(error_as_sent(end.result.error, row.named, 0, 1))
        case JobFailed():
            return api_error(end)
        case JobCancelled():
            return ApiError(409, str(end), "cancelled")
        case JobExpired():
            return ApiError(408, str(end), "expired")
        case _:
            return ApiError(404, str(end), "not_found")


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
