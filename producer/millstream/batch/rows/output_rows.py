"""Results as rows of the output file, and faults as rows of the error file, in the OpenAI Batch format."""

from __future__ import annotations

from typing import Any

from millstream.batch.rows import marks
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import INCOMPLETE_OUTPUT, FaultCode, LineFault
from millstream.batch.rows.request_body import BatchEndpoint
from millstream.errors import InvalidRequest, JobCancelled, JobError, JobExpired, JobFailed, MillstreamError
from millstream.wire.messages.choices import Choice, TokenLogprob
from millstream.wire.messages.messages import Result, Usage

OK = 200


def answer_row(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job, as the API's endpoint would have answered."""
    return {
        "id": marks.row_id(row.digest),
        "custom_id": row.custom_id,
        "response": _response(row, job_id, result),
        "error": None,
    }


def is_incomplete(result: Result) -> bool:
    """Whether a choice is not the whole answer that its response format asks for."""
    return any(choice.complete is False for choice in result.choices)


def incomplete_row(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    """The row of a completed job with an incomplete choice; its response has all choices."""
    message = (
        f"line {row.line}: the answer was cut before it was whole, by max_tokens, the end of the context "
        "or a stop string; allow more tokens, and try it with --retry-incomplete"
    )
    return _error_row(row, _response(row, job_id, result), INCOMPLETE_OUTPUT, message, None)


def _response(row: BatchLine, job_id: str, result: Result) -> dict[str, Any]:
    made = _chat if row.endpoint is BatchEndpoint.CHAT else _completion
    return {"status_code": OK, "request_id": job_id, "body": made(job_id, result)}


def failure_row(row: BatchLine, job_id: str, end: JobError) -> dict[str, Any]:
    """The row of a job that was accepted and ended without a full answer."""
    code, status = _ended(end)
    result = getattr(end, "result", None)
    field = None
    if isinstance(result, Result) and result.error and result.error.field:
        field, status = f"body.{result.error.field}", 400
    kind = "invalid_request_error" if status == 400 else "server_error"
    inner = {"message": str(end), "type": kind, "param": field, "code": code}
    response = {"status_code": status, "request_id": job_id, "body": {"error": inner}}
    return _error_row(row, response, code, str(end), field)


def refusal_row(row: BatchLine, error: MillstreamError) -> dict[str, Any]:
    """The row of a valid line that the client refused to submit: too large, or its id is taken."""
    field = f"body.{error.field}" if isinstance(error, InvalidRequest) else None
    code = FaultCode.INVALID_FIELD if field else "conflict"
    return _error_row(row, None, code, f"line {row.line}: {error}", field)


def _error_row(
    row: BatchLine, response: dict[str, Any] | None, code: str, message: str, field: str | None
) -> dict[str, Any]:
    return {
        "id": marks.row_id(row.digest),
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
        "id": marks.fault_id(line, data),
        "custom_id": fault.custom_id,
        "response": None,
        "error": {
            "code": fault.code,
            "message": f"line {line}: {fault.message}",
            "param": fault.field,
            "line": line,
        },
    }


def _chat(job_id: str, result: Result) -> dict[str, Any]:
    return _envelope(f"chatcmpl-{job_id}", "chat.completion", result) | {
        "choices": [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": _chat_logprobs(choice),
                "finish_reason": choice.finish_reason,
                **_complete(choice),
            }
            for choice in result.choices
        ],
    }


def _message(choice: Choice) -> dict[str, Any]:
    """A thought and calls of tools only where there are any."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning_content:
        message["reasoning_content"] = choice.reasoning_content
    if choice.tool_calls:
        message["tool_calls"] = [call.model_dump() for call in choice.tool_calls]
    return message


def _completion(job_id: str, result: Result) -> dict[str, Any]:
    return _envelope(f"cmpl-{job_id}", "text_completion", result) | {
        "choices": [
            {
                "text": choice.text,
                "index": choice.index,
                "logprobs": _completion_logprobs(choice),
                "finish_reason": choice.finish_reason,
                **_complete(choice),
            }
            for choice in result.choices
        ],
    }


def _complete(choice: Choice) -> dict[str, bool]:
    """Nothing without a response format."""
    return {} if choice.complete is None else {"complete": choice.complete}


def _envelope(own_id: str, kind: str, result: Result) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": own_id,
        "object": kind,
        "created": (result.timing.finished_ms or result.timing.submitted_ms) // 1000,
        "model": result.model,
        "choices": [],
        "usage": _usage(result.usage),
    }
    if result.metadata:
        body["metadata"] = result.metadata
    if result.weights is not None:
        body["weights"] = result.weights
    return body


def _usage(usage: Usage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.draft_tokens:
        made["completion_tokens_details"] = {
            "accepted_prediction_tokens": usage.accepted_draft_tokens,
            "rejected_prediction_tokens": usage.draft_tokens - usage.accepted_draft_tokens,
        }
    return made


def _chat_logprobs(choice: Choice) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    content = [
        {
            "token": drawn.token,
            "logprob": drawn.logprob,
            "bytes": _bytes(drawn.token),
            "top_logprobs": [
                {"token": top.token, "logprob": top.logprob, "bytes": _bytes(top.token)} for top in drawn.top
            ],
        }
        for drawn in choice.logprobs
    ]
    return {"content": content, "refusal": None}


def _bytes(token: str) -> list[int] | None:
    """None if the token is a part of a character: its text no longer shows the bytes."""
    return None if "\ufffd" in token else list(token.encode())


def _completion_logprobs(choice: Choice) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    return {
        "tokens": [drawn.token for drawn in choice.logprobs],
        "token_logprobs": [drawn.logprob for drawn in choice.logprobs],
        "top_logprobs": [{top.token: top.logprob for top in drawn.top} for drawn in choice.logprobs],
        "text_offset": _offsets(choice.logprobs),
    }


def _offsets(logprobs: tuple[TokenLogprob, ...]) -> list[int]:
    offsets, at = [], 0
    for drawn in logprobs:
        offsets.append(at)
        at += len(drawn.token)
    return offsets
