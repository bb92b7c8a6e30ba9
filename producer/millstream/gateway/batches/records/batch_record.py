"""Reads the record of one batch, and shows it as OpenAI's API does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar

from millstream.errors import ProtocolError
from millstream.gateway.redis.batch_calls import PartCounts
from millstream.openai.prompt_list import prompt_ids

T = TypeVar("T")
FOLDER = "batches"  # of the store of files
PREFIX = "batch_"
PARTS_KEPT_S = 86_400  # a server that has lost its last writes may have the batch as it was before its end
GIVEN_UP_S = 86_400  # after its time, if its store of files cannot be used


class BatchStatus(StrEnum):
    """A batch's state. It changes: validating -> failed | in_progress -> finalizing -> completed | expired;
    in_progress and validating -> cancelling -> cancelled; validating -> expired.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self in (self.FAILED, self.COMPLETED, self.EXPIRED, self.CANCELLED)


class RowKind(StrEnum):
    """Names the one of a batch's two files that a row is in."""

    OUTPUT = "output"
    ERROR = "error"


_COUNTS = tuple(one.name for one in dataclasses.fields(PartCounts))
_TIMES = ("cancelled", "cancelling", "completed", "expired", "failed", "finalizing", "in_progress")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch. Times are Unix seconds. `queues`: those that its creator's key may use; none: all.
    `output_lasts_s`: how long its files are kept; 0: for ever. `models`: names in the input, with their
    queues. `total` 0: it has not been validated.
    """

    id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: int
    expires_s: int
    times: Mapping[str, int]
    counts: PartCounts
    total: int = 0
    metadata: Mapping[str, str] | None = None
    queues: tuple[str, ...] = ()
    models: Mapping[str, str] | None = None
    output_lasts_s: int = 0
    response_format: Mapping[str, Any] | None = None  # of lines that say nothing about theirs
    in_order: bool = False  # lines are sent as they lie, not those that begin alike together
    groups: int = 0  # of lines that begin alike, as the validation has found them
    shared_tokens: int = 0  # about so many, of prompts, that an earlier line of a group has, too
    errors: tuple[Mapping[str, Any], ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    ends_as: BatchStatus = BatchStatus.COMPLETED  # when it is finalized
    live_tokens: int = 0  # output of rows under way, as the gateway that carries it out saw it last

    @classmethod
    def of(cls, tenant: str, id: str, fields: Mapping[str, str]) -> Self:
        """Reads a batch from its hash. Raises ProtocolError."""
        try:
            return cls(
                id,
                tenant,
                BatchStatus(fields["status"]),
                fields["endpoint"],
                fields["input_file_id"],
                fields["completion_window"],
                created_s=int(fields["created_s"]),
                expires_s=int(fields["expires_s"]),
                times={name: int(fields[f"{name}_s"]) for name in _TIMES if f"{name}_s" in fields},
                counts=PartCounts(**{name: int(fields.get(name, 0)) for name in _COUNTS}),
                total=int(fields.get("total", 0)),
                metadata=_stored(fields, "metadata", dict),
                queues=tuple(_stored(fields, "queues", list) or ()),
                models=_stored(fields, "models", dict),
                output_lasts_s=int(fields.get("output_lasts_s", 0)),
                response_format=_stored(fields, "response_format", dict),
                in_order=bool(_stored(fields, "in_order", bool)),
                groups=int(fields.get("groups", 0)),
                shared_tokens=int(fields.get("shared_tokens", 0)),
                errors=tuple(_stored(fields, "errors", list) or ()),
                output_file_id=fields.get("output_file_id"),
                error_file_id=fields.get("error_file_id"),
                ends_as=BatchStatus(fields.get("ends_as", BatchStatus.COMPLETED)),
                live_tokens=_live_tokens(fields),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise ProtocolError(f"the record of {id} is damaged: {error!s:.100}") from None

    @property
    def folder(self) -> str:
        """The folder of its parts in the store of files."""
        return f"{FOLDER}/{self.id}"

    @property
    def is_validated(self) -> bool:
        return "in_progress" in self.times

    def is_given_up(self, now_s: float) -> bool:
        """True when it has ended nowhere although its time has been over for a day."""
        return now_s > self.expires_s + GIVEN_UP_S

    def is_over(self, now_s: float) -> bool:
        """True when nobody needs its parts any more: it ended a day ago."""
        return self.status.has_ended and now_s > self.times.get(self.status, self.expires_s) + PARTS_KEPT_S

    @property
    def model(self) -> str | None:
        """The model that all its lines name; None if they name several."""
        return next(iter(self.models)) if self.models and len(self.models) == 1 else None

    def own_ids(self, line: int, prompts: int = 1) -> list[str]:
        """Returns the own ids of the jobs of this input line, one for each of its prompts."""
        return prompt_ids(f"b{self.id.removeprefix(PREFIX)}-{line}", prompts)

    def file_id(self, kind: RowKind) -> str:
        """Returns the same id each time, so that a gateway that finalizes again makes no second file."""
        return f"file-{hashlib.sha256(f'{self.id} {kind}'.encode()).hexdigest()[:32]}"

    def to_api(self) -> dict[str, Any]:
        times = {f"{name}_at": self.times.get(name) for name in _TIMES}
        errors = {"object": "list", "data": list(self.errors)} if self.errors else None
        return times | {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "request_counts": {
                "total": self.total,
                "completed": self.counts.completed,
                "failed": self.counts.failed,
            },
            "usage": self._usage(),
            "metadata": self.metadata,
            **self._beyond_openai(),
        }

    def _beyond_openai(self) -> dict[str, Any]:
        """Fields that only batches have that ask for them, or whose lines have what they count."""
        counts, made = self.counts, dict[str, Any]()
        if counts.expected:
            made["expected"] = {"total": counts.expected, "agreed": counts.agreed}
        if self.response_format is not None:
            made["response_format"] = self.response_format
        if self.in_order:
            made["in_order"] = True
        if self.groups:
            made |= {"groups": self.groups, "shared_tokens": self.shared_tokens}
        return made

    def _usage(self) -> dict[str, Any]:
        """Thoughts are counted in the output; no worker counts them separately."""
        counts = self.counts
        output_tokens = counts.output_tokens + (0 if self.status.has_ended else self.live_tokens)
        return {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": counts.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt_tokens + output_tokens,
        }


def _live_tokens(fields: Mapping[str, str]) -> int:
    """Those that its present holder has told; another one begins anew. No damage here is the batch's."""
    teller, _, tokens = fields.get("live", "").partition(" ")
    told = bool(teller) and teller == fields.get("holder") and tokens.isascii() and tokens.isdecimal()
    return int(tokens) if told else 0


def _stored(fields: Mapping[str, str], name: str, kind: type[T]) -> T | None:
    """Reads a field of JSON; None if it is null, or not there. Raises ValueError for another type."""
    value = json.loads(fields.get(name, "null"))
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} is no {kind.__name__}")
    return value
