"""Defines the errors that OpenAI's API answers, and converts Millstream's errors to them.

A client retries 408, 409, 429 and all from 500 on by itself, unless `x-should-retry: false` tells it that
the same request would meet the same end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.errors import (
    AccessDenied,
    Conflict,
    InvalidRequest,
    JobCancelled,
    JobExpired,
    JobFailed,
    MillstreamError,
    NotFound,
    NotReady,
    ProtocolError,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.job_messages import ErrorInfo

NO_RETRY = {"x-should-retry": "false"}
RETRY_S = 2.0  # a server that restarts, a worker that comes up
_NESTED = "sampling."
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A response other than 200. `param`: the dotted path of the request's field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.message, self.code, self.param, self.headers)

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def retry_after(seconds: float) -> dict[str, str]:
    """Returns both headers: the older clients read whole seconds only."""
    return {
        "retry-after": str(max(1, round(seconds + 0.5))),
        "retry-after-ms": str(max(1, round(seconds * 1000))),
    }


def api_error(error: MillstreamError) -> ApiError:
    """Converts an error for a caller, who learns nothing of the servers behind the gateway."""
    match error:
        case UnsupportedField():
            return ApiError(400, str(error), error.code, error.field)
        case InvalidRequest():
            return ApiError(400, str(error), "invalid_value", error.field)
        case Conflict():
            return ApiError(409, str(error), "conflict", headers=NO_RETRY)
        case QueueFull():
            message = f"the queue is full ({error.reason}): try again in {error.retry_after_s:.1f} s"
            return ApiError(429, message, "queue_full", headers=retry_after(error.retry_after_s))
        case QueueMismatch():
            message = "no worker of this queue takes such requests now; try again after its upgrade"
            return ApiError(503, message, "queue_mismatch", headers=retry_after(RETRY_S))
        case Unavailable():
            message = "the queue's server, or the store of files, does not answer; try again"
            return ApiError(503, message, "unavailable", headers=retry_after(RETRY_S))
        case AccessDenied():
            message = "the gateway lacks a right on the queue's server; tell its operator"
            return ApiError(500, message, "access_denied", headers=NO_RETRY)
        case ProtocolError():
            message = "the stored answer cannot be read; tell the gateway's operator"
            return ApiError(500, message, "unreadable", headers=NO_RETRY)
        case JobFailed() if error.result is not None and error.result.error is not None:
            return failure(error.result.error)
        case JobFailed():
            return ApiError(500, str(error), error.reason, headers=NO_RETRY)
        case JobCancelled():
            message = "the job was cancelled by the queue's operator"
            return ApiError(409, message, "cancelled", headers=NO_RETRY)
        case JobExpired() | NotReady():
            return ApiError(504, "the time for this request is over", "timeout", headers=NO_RETRY)
        case NotFound():
            return ApiError(404, "no such object, or it has expired", "not_found")
        case _:
            return ApiError(500, "the gateway failed; its log has the reason", "internal_error")


def failure(error: ErrorInfo) -> ApiError:
    """Converts the error of a job that the fleet gave up, or that its worker refused for one field."""
    if error.field:
        name = error.field.removeprefix(_NESTED)  # the worker names the fields of the queue's requests
        return ApiError(400, error.message.removeprefix(_NESTED), error.code, name)
    return ApiError(500, error.message, error.code, headers=NO_RETRY)


def timeout(seconds: float) -> ApiError:
    message = f"no answer within {seconds:g} s; ask for fewer tokens, or stream the answer"
    return ApiError(504, message, "timeout", headers=NO_RETRY)
