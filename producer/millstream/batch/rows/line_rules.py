"""Reads the lines of one run by the rules that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.batch.media.media_folder import MediaFolder
from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, parse, read_row
from millstream.batch.rows.faults import LineFault, invalid, too_long
from millstream.batch.rows.line_splitter import InputLine
from millstream.openai.format_fields import has_format
from millstream.wire.keys import Lane, QueueKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRules:
    queue: str | None = None  # for all lines, overriding their body.model
    lane: Lane = Lane.BATCH
    tenant: str = ""
    endpoint: str | None = None  # of all lines; None: each line's own
    response_format: Mapping[str, Any] | None = None  # OpenAI's, of lines that say nothing about theirs
    encoded: bool = False  # requests are encoded while they are read
    media: MediaFolder | None = None  # images may be files below it

    def __post_init__(self) -> None:
        if self.queue:
            QueueKeys(self.queue)  # refuses a bad name

    def queue_of(self, named: str) -> str:
        """The queue of a line with this body.model."""
        return self.queue or named

    def fields_of(self, line: InputLine) -> tuple[str, Mapping[str, Any]]:
        """The line's custom_id, and the line as an object, with the run's format if it says nothing about
        its own: its digest covers that, too. Raises LineFault.
        """
        if line.data is None:
            raise too_long(line.limit)
        fields = parse(line.data)
        body = fields.get("body")
        if self.response_format is not None and isinstance(body, dict) and not has_format(body):
            fields = {**fields, "body": {**body, "response_format": self.response_format}}
        return custom_id_of(fields), fields

    def row_of(
        self, line: InputLine, custom_id: str, fields: Mapping[str, Any], queue: str | None = None
    ) -> BatchLine:
        """The row of a line that `fields_of` has read. `queue`: in the place of the rules' own. Raises
        LineFault, which has its custom_id.
        """
        try:
            if self.endpoint not in (None, fields.get("url")):
                problem = f"this batch is of {self.endpoint}"
                raise invalid("url", fields.get("url"), problem, "mismatched_url")
            return read_row(
                line.number,
                custom_id,
                fields,
                lane=self.lane,
                tenant=self.tenant,
                queue=queue or self.queue,
                size=len(line.data or b""),
                encoded=self.encoded,
                media=self.media,
            )
        except LineFault as fault:
            fault.custom_id = custom_id
            raise
