"""Reads a line of a batch's input as a row to submit: what `millstream batch run` reads, for one endpoint and
the models of one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millstream.batch.files.input_lines import MAX_LINE_BYTES, InputLine
from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, parse, read_row
from millstream.batch.rows.faults import FaultCode, LineFault, invalid
from millstream.gateway.batches.batch_record import BatchRecord
from millstream.gateway.identity.keyring import ApiKey
from millstream.gateway.services.queue_directory import QueueDirectory
from millstream.gateway.web.api_error import ApiError
from millstream.wire.keys import Lane


class LineReader:
    """`models`: the names that were found so far, with their queues. They stay as they are when the batch was
    validated, whatever becomes of the queues' workers.
    """

    def __init__(self, batch: BatchRecord, directory: QueueDirectory) -> None:
        self.models = dict(batch.models or {})
        self._batch = batch
        self._directory = directory
        self._caller = ApiKey(tenant=batch.tenant, queues=batch.queues)

    async def read(self, line: InputLine) -> BatchLine:
        """Raises LineFault, Unavailable."""
        if line.data is None:
            raise LineFault(FaultCode.LINE_TOO_LONG, f"longer than {MAX_LINE_BYTES} bytes; shorten its input")
        fields = parse(line.data)
        custom_id = custom_id_of(fields)
        try:
            row = await self._row(line.number, custom_id, fields)
        except LineFault as fault:
            fault.custom_id = custom_id
            raise
        return replace(row, size=len(line.data))

    async def _row(self, number: int, custom_id: str, fields: Mapping[str, Any]) -> BatchLine:
        endpoint = self._batch.endpoint
        if fields.get("url") != endpoint:
            raise invalid("url", fields.get("url"), f"this batch is of {endpoint}", "mismatched_url")
        row = read_row(number, custom_id, fields, lane=Lane.BATCH, tenant=self._batch.tenant, queue="default")
        return replace(row, queue=await self._queue(fields["body"].get("model")))

    async def _queue(self, model: Any) -> str:
        if model is None:
            raise LineFault("missing_field", "body.model: missing; give one of /v1/models", "body.model")
        if not isinstance(model, str):
            raise invalid("body.model", model, "give the name of a model, as /v1/models lists them")
        if model not in self.models:
            try:
                served = await self._directory.find(model, self._caller)
            except ApiError as error:
                raise LineFault(str(error.code), f"body.{error.message}", "body.model") from None
            self.models[model] = served.queue
        return self.models[model]
