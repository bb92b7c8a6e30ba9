"""Millstream's client: submit prompts to a queue, stream their tokens, collect their results.

A producer needs nothing else; no worker code is imported.
"""

import logging
import typing

from millstream.batch.run.tally import BatchProgress
from millstream.batch.run.tally import Summary as BatchSummary
from millstream.client.async_client import AsyncClient
from millstream.client.jobs.count_jobs import PromptTokens
from millstream.client.session.job_status import JobStatus
from millstream.client.session.options import ClientOptions
from millstream.client.session.queue_status import LaneStatus, QueueStatus, WorkerStatus
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent, Transcript
from millstream.client.submit.requests import JobArguments, JobFields, SamplingFields
from millstream.client.submit.submission import Submitted
from millstream.client.sync_client import Client
from millstream.errors import (
    AccessDenied,
    Conflict,
    CursorExpired,
    IncompleteAnswer,
    InvalidRequest,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    MillstreamError,
    MissingExtra,
    NotDead,
    NotDurable,
    NotFound,
    NotReady,
    ProtocolError,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.wire.keys import Lane
from millstream.wire.messages.choices import Choice, ChoiceDelta, TokenLogprob, TopLogprob
from millstream.wire.messages.job_messages import (
    ChatMessage,
    ErrorInfo,
    Request,
    Result,
    State,
    Timing,
    Usage,
)
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import CancelOutcome
from millstream.wire.messages.tools import FunctionCall, Tool, ToolCall, ToolChoice
from millstream.wire.state.dead_letter import DeadLetter
from millstream.wire.state.durability import Durability
from millstream.wire.state.queue_info import ModelIdentity, PubSub

# Our warnings must not appear in the output of programs that do not configure logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "BatchProgress",
    "BatchSummary",
    "CancelOutcome",
    "ChatMessage",
    "Choice",
    "ChoiceDelta",
    "Client",
    "ClientOptions",
    "Conflict",
    "CursorExpired",
    "DeadLetter",
    "Durability",
    "EndEvent",
    "ErrorInfo",
    "Event",
    "FunctionCall",
    "IncompleteAnswer",
    "InvalidRequest",
    "JobArguments",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobFields",
    "JobStatus",
    "Lane",
    "LaneStatus",
    "MillstreamError",
    "MissingExtra",
    "ModelIdentity",
    "NotDead",
    "NotDurable",
    "NotFound",
    "NotReady",
    "PromptTokens",
    "ProtocolError",
    "PubSub",
    "QueueFull",
    "QueueMismatch",
    "QueueStatus",
    "Request",
    "ResponseFormat",
    "Result",
    "RewindEvent",
    "SamplingFields",
    "SamplingParams",
    "State",
    "Submitted",
    "Timing",
    "TokenEvent",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "TopLogprob",
    "Transcript",
    "Unavailable",
    "Usage",
    "WorkerStatus",
    "batch_rows",
    "batch_rows_blocking",
    "run_batch",
    "run_batch_blocking",
]

if typing.TYPE_CHECKING:
    from millstream.batch.run_batch import batch_rows, batch_rows_blocking, run_batch, run_batch_blocking

    __version__: str
else:

    def __getattr__(name: str) -> typing.Any:
        """Imports on access what most programs do not need: batch runs, and the reader of the version."""
        if name == "__version__":
            from millstream.version import version

            return version()
        if name in ("batch_rows", "batch_rows_blocking", "run_batch", "run_batch_blocking"):
            from millstream.batch import run_batch

            return getattr(run_batch, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
