"""Sets up the log: JSON lines for machines, readable lines on a terminal. Everything goes to standard error.
Tracebacks omit local variables, which may contain somebody's prompt.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]
_FIRST = ("timestamp", "level", "event")


def configure(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> bool:
    """Set up structlog and the standard library's logging (redis-py, transformers, uvicorn) alike. Returns
    True if the lines are for people.
    """
    stream = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    lasting = cast(TextIO, _LastingStream(stream))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = _for_people(stream) if console else _for_machines()
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(lasting),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lasting)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    return console


def withheld(error: BaseException) -> Any:
    """Returns the places of an exception and its type, as a line takes them as `exc_info`, without its text,
    which may quote a request. Of a group, those of its first: the group's own are where it was made.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    kind = type(error)
    return kind, _Withheld(f"{kind.__name__}, whose text may quote a request"), error.__traceback__


def _for_people(stream: TextIO) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]


def _for_machines() -> list[Processor]:
    tracebacks = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    return [tracebacks, _in_order, structlog.processors.JSONRenderer()]


def _in_order(_: Any, __: str, fields: EventDict) -> EventDict:
    """Puts what every line has in front."""
    return {name: fields[name] for name in _FIRST if name in fields} | dict(fields)


class _Withheld(Exception):
    """Stands in tracebacks for an exception whose text is not to be seen."""


class _LastingStream:
    """Outlasts a full disk and a reader that has gone: a line that cannot be written ends nobody's work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
