"""Holds the options of a batch run, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.batch.rows.batch_lines import BatchLine, read_row
from millstream.batch.rows.faults import fault_of_body
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.submit_lines import Patience
from millstream.client.submit.encoded_prompts import encoded_prompts
from millstream.errors import InvalidRequest
from millstream.openai.format_fields import has_format
from millstream.wire.keys import Lane, QueueKeys

DEFAULT_WINDOW = 2000


@dataclass(frozen=True, slots=True)
class RunOptions:
    window: int = DEFAULT_WINDOW  # jobs under way at once
    queue: str | None = None  # for all lines, overriding their body.model
    lane: Lane = Lane.BATCH
    tenant: str = ""
    keep_results: bool = False  # on the server until they expire, even if their rows are on disk
    response_format: Mapping[str, Any] | None = None  # OpenAI's, of lines that say nothing about theirs
    on_change: OnChange = OnChange.STOP
    strict_fields: bool = False  # a field that nothing reads stops the run before its first job
    reuse: bool = True  # equal lines whose answers are not sampled are computed once
    # not the user's to choose
    window_bytes: int = 128 * 1024**2  # of input lines under way at once, however few they are
    clear_jobs: int = 256  # ended jobs that are forgotten at once
    patience: Patience = field(default_factory=Patience)

    def queue_of(self, named: str) -> str:
        """The queue of a line with this body.model."""
        return self.queue or named

    def completed(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds the run's format to a line that has none; the line's digest covers it, too."""
        body = fields.get("body")
        if self.response_format is None or not isinstance(body, dict) or has_format(body):
            return fields
        return {**fields, "body": {**body, "response_format": self.response_format}}

    def row_of(self, line: int, custom_id: str, fields: Mapping[str, Any]) -> BatchLine:
        """Reads a completed line as a row of this run, with its size if it has several prompts: their
        requests repeat what the line has once. Raises LineFault.
        """
        row = read_row(line, custom_id, fields, lane=self.lane, tenant=self.tenant, queue=self.queue)
        if row.prompts == 1:
            return row
        try:
            encoded = encoded_prompts(row.requests)
        except InvalidRequest as error:
            raise fault_of_body(error) from error
        return replace(row, size=sum(len(one.payload) for one in encoded))

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidRequest("window", self.window, "must be at least 1")
        if self.queue:
            QueueKeys(self.queue)  # refuses a bad name
