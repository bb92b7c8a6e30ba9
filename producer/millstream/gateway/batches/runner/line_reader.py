"""Reads a line of a batch's input as a row to submit: as `millstream batch run` does, for one endpoint and
the models of one key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from millstream.batch.order.beginnings import beginnings_of
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import FaultCode, LineFault, invalid
from millstream.batch.rows.line_rules import LineRules
from millstream.batch.rows.line_splitter import InputLine
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.runner.finished_rows import faulty_row
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.cpu_executor import CpuExecutor, UnexpectedError
from millstream.gateway.queues.queue_directory import QueueDirectory
from millstream.openai.api_error import ApiError
from millstream.openai.request_body import DEFAULT_QUEUE

_AT_ONCE = 8  # lines, until other tasks of the gateway have their turn


class LineReader:
    """`models`: the names that were found so far, with their queues. They stay as they are when the batch was
    validated, whatever becomes of the queues' workers.
    """

    def __init__(
        self,
        batch: BatchRecord,
        directory: QueueDirectory,
        executor: CpuExecutor,
        *,
        finds_order: bool = False,
    ) -> None:
        """`finds_order`: rows have their `beginnings`."""
        self.models = dict(batch.models or {})
        self._rules = LineRules(
            tenant=batch.tenant,
            endpoint=batch.endpoint,
            response_format=batch.response_format,
            encoded=True,
        )
        self.finds_order = finds_order
        self._tenant = batch.tenant
        self._format_bytes = len(json.dumps(batch.response_format))  # that are read with each line
        self._directory = directory
        self._executor = executor
        self._only_queue = batch.queues[0] if len(batch.queues) == 1 else None
        self._caller = ApiKey(tenant=batch.tenant, queues=batch.queues)

    async def read(self, line: InputLine) -> BatchLine:
        """Raises LineFault, Unavailable."""
        size = len(line.data or b"") + self._format_bytes
        try:
            row = await self._executor.run(
                self._tenant, size, read_line, line, self._rules, finds_order=self.finds_order
            )
        except UnexpectedError as error:
            raise LineFault(FaultCode.UNREADABLE_REQUEST, f"reading this request {error}") from None
        if isinstance(row, LineFault):
            if row.trace:
                self._executor.tell(row.trace)
            raise row
        queue = await self._queue(row)
        return row if queue == row.queue else replace(row, queue=queue)

    async def beginnings(self, line: InputLine) -> Sequence[int]:
        """The `beginnings` of a line, which is not checked; none if it cannot be read."""
        try:
            size = len(line.data or b"")
            return await self._executor.run(self._tenant, size, read_beginnings, line, self._rules)
        except UnexpectedError:
            return ()

    async def _queue(self, row: BatchLine) -> str:
        """The queue of the row's model; a key of one queue need not name it."""
        model = row.queue or self._only_queue
        if model is None:
            problem = "body.model: missing; give one of /v1/models"
            raise LineFault("missing_field", problem, "body.model", row.custom_id)
        if model not in self.models:
            try:
                served = await self._directory.find(model, self._caller)
            except ApiError as error:
                message = f"body.{error.message}"
                raise LineFault(str(error.code), message, "body.model", row.custom_id) from None
            self.models[model] = served.queue
        return self.models[model]


async def unwritten_rows(
    lines: AsyncIterator[InputLine], reader: LineReader, parts: PartWriter
) -> AsyncIterator[BatchLine]:
    """Those lines that have no row. Raises LeaseLost, MillstreamError."""
    count = 0  # the numbers of a group may all be odd
    async for line in lines:
        if (count := count + 1) % _AT_ONCE == 0:
            await asyncio.sleep(0)
        if line.number in parts.written:
            continue
        try:
            row = await reader.read(line)
        except LineFault as fault:
            await parts.add(faulty_row(line.number, fault, line.data))
            continue
        yield row


def read_beginnings(line: InputLine, rules: LineRules) -> Sequence[int]:
    try:
        return beginnings_of(rules.fields_of(line)[1])
    except LineFault:
        return ()


def read_line(line: InputLine, rules: LineRules, *, finds_order: bool = False) -> BatchLine | LineFault:
    """Returns the line, encoded, with its model in the place of its queue; without one, an empty text."""
    try:
        custom_id, fields = rules.fields_of(line)
        body = fields.get("body")
        model = body.get("model") if isinstance(body, dict) else None
        row = rules.row_of(line, custom_id, fields, str(model or DEFAULT_QUEUE))
        if not isinstance(model, str | None):
            problem = "give the name of a model, as /v1/models lists them"
            raise invalid("body.model", model, problem, custom_id=custom_id)
        if finds_order:
            row = replace(row, beginnings=beginnings_of(fields))
        return row if model else replace(row, queue="")
    except LineFault as fault:
        return fault
