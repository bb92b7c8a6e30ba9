"""The reason why a line was not run: a value that becomes an error row and never ends the run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from millstream.errors import ENDS, InvalidRequest
from millstream.openai.unsupported_field import UnknownField, UnsupportedField
from millstream.wire.messages.validation_errors import BEYOND

P = ParamSpec("P")
T = TypeVar("T")
FIRST_LINES = 20  # of a file: if none of them is a JSON object, it is no JSONL
_FRAMES = 20  # of a traceback, the innermost
INCOMPLETE_OUTPUT = "incomplete_output"  # of a line whose job has ended with a cut answer
SCHEMA_MISMATCH = "schema_mismatch"  # of one whose calls do not fit the functions' parameters


class FaultCode(StrEnum):
    """Stable codes of lines that were never submitted; failed jobs carry the worker's codes."""

    INVALID_ENCODING = "invalid_encoding"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    LINE_TOO_LONG = "line_too_long"
    MISSING_CUSTOM_ID = "missing_custom_id"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    UNKNOWN_URL = "unknown_url"
    INVALID_FIELD = "invalid_field"
    UNSUPPORTED_PARAMETER = UnsupportedField.code
    UNKNOWN_PARAMETER = UnknownField.code
    UNREADABLE_REQUEST = "unreadable_request"


_NO_OBJECT = {
    FaultCode.INVALID_ENCODING, FaultCode.INVALID_JSON, FaultCode.NOT_AN_OBJECT, FaultCode.LINE_TOO_LONG
}  # fmt: skip


class LineFault(Exception):
    """One line is invalid. `field` is the dotted path of the field to change; None: the whole line. `trace`:
    of an exception that no line is expected to cause.
    """

    def __init__(
        self, code: str, message: str, field: str | None = None, custom_id: str | None = None, trace: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.custom_id = custom_id
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.field, self.custom_id, self.trace)


class FirstLines:
    """The first lines of a file. One of another format (CSV, a binary file, JSON over many lines) has no line
    of a batch there, and is refused as a whole.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._first = ""  # the first line, in words
        self._lines = 0

    def take(self, number: int, data: bytes | None, fault: LineFault | None) -> None:
        """One more line, and what is wrong with it. Raises InvalidRequest once it is certain."""
        self._lines += 1
        if fault is None or fault.code not in _NO_OBJECT:
            self._lines = FIRST_LINES  # it has lines of JSON: nothing more is asked
        elif self._lines == 1:
            self._first = f"line {number:,} {_told(data, fault)}"
        elif self._lines == FIRST_LINES and self._first:
            problem = f"this is no JSONL: {self._first}"
            more = f"and the {FIRST_LINES - 1} lines after it are no JSON objects either"
            problem += f", {more}; give one request a line, as a JSON object"
            raise InvalidRequest("IN", self._path, problem)


def _told(data: bytes | None, fault: LineFault) -> str:
    """The first line in words."""
    if data is None:
        return "is longer than a line may be"
    begin = data.strip()[:40]
    if fault.code == FaultCode.INVALID_ENCODING:
        return f"is not UTF-8 text (it begins with the bytes {begin[:8].hex(' ')})"
    return f"is {begin.decode('utf-8', 'replace')!a}{' …' if len(data.strip()) > len(begin) else ''}"


def faults_only(work: Callable[P, T]) -> Callable[P, T]:
    """Decorates code that reads a line of a batch. Raises LineFault in place of whatever that raises."""

    @wraps(work)
    def guarded(*args: P.args, **more: P.kwargs) -> T:
        try:
            return work(*args, **more)
        except (LineFault, *ENDS):
            raise
        except (RecursionError, OverflowError) as error:
            raise invalid("body", type(error).__name__, BEYOND) from error
        except BaseException as error:
            kind = type(error).__name__
            problem = f"reading it raised {kind}, which is not expected of any line; change it"
            raise LineFault(FaultCode.UNREADABLE_REQUEST, problem, trace=trace_of(error)) from error

    return guarded


def trace_of(error: BaseException) -> str:
    """The places of an exception, and its type; its text may quote the line."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__, -_FRAMES))}"


def fault_of_body(error: InvalidRequest) -> LineFault:
    """The fault of a line whose body has this error."""
    code = error.code if isinstance(error, UnsupportedField) else FaultCode.INVALID_FIELD
    return invalid(f"body.{error.field}", error.value, error.problem, code)


def too_long(most_bytes: int) -> LineFault:
    return LineFault(FaultCode.LINE_TOO_LONG, f"longer than {most_bytes} bytes; shorten its input")


def duplicate(custom_id: str) -> LineFault:
    """The fault of a line whose custom_id an earlier one has."""
    problem = f"custom_id: {custom_id!r} stands on an earlier line; give each line its own"
    return LineFault(FaultCode.DUPLICATE_CUSTOM_ID, problem, "custom_id", custom_id)


def invalid(
    path: str, value: Any, problem: str, code: str = FaultCode.INVALID_FIELD, custom_id: str | None = None
) -> LineFault:
    """The fault of the field at this dotted path."""
    return LineFault(code, str(InvalidRequest(path, value, problem)), path, custom_id)
