"""Reads a line of a batch's input as a row to submit: what `millstream batch run` reads, for one endpoint and
the models of one key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millstream.batch.files.input_lines import MAX_LINE_BYTES, InputLine
from millstream.batch.rows.batch_lines import BatchRow, custom_id_of, parse, read_row
from millstream.batch.rows.faults import FaultCode, LineFault, fault_of_body, invalid, too_long
from millstream.client.submit.encoded_prompts import encoded_prompts
from millstream.client.submit.requests import EncodedRequest
from millstream.errors import InvalidRequest
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.cpu_executor import CpuExecutor, UnexpectedError
from millstream.gateway.queues.queue_directory import QueueDirectory
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import ApiError
from millstream.wire.keys import Lane


@dataclass(frozen=True, slots=True)
class EncodedLine(BatchRow):
    """A valid line, whose requests can be sent, one for each prompt. `queue`: until it is found, the model.
    `logprobs`: it asks for them, so that its jobs' logs are long.
    """

    requests: tuple[EncodedRequest, ...]
    logprobs: bool = False


class LineReader:
    """`models`: the names that were found so far, with their queues. They stay as they are when the batch was
    validated, whatever becomes of the queues' workers.
    """

    def __init__(self, batch: BatchRecord, directory: QueueDirectory, executor: CpuExecutor) -> None:
        self.models = dict(batch.models or {})
        self._batch = batch
        self._directory = directory
        self._executor = executor
        self._caller = ApiKey(tenant=batch.tenant, queues=batch.queues)

    async def read(self, line: InputLine) -> EncodedLine:
        """Raises LineFault, Unavailable."""
        if line.data is None:
            raise too_long(MAX_LINE_BYTES)
        batch, data = self._batch, line.data
        run = self._executor.run
        try:
            row = await run(
                batch.tenant, len(data), read_line, data, line.number, batch.endpoint, batch.tenant
            )
        except UnexpectedError as error:
            raise LineFault(FaultCode.UNREADABLE_REQUEST, f"reading this request {error}") from None
        if isinstance(row, LineFault):
            if row.trace:
                self._executor.tell(row.trace)
            raise row
        return replace(row, queue=await self._queue(row))

    async def _queue(self, row: EncodedLine) -> str:
        model = row.queue
        if model not in self.models:
            try:
                served = await self._directory.find(model, self._caller)
            except ApiError as error:
                message = f"body.{error.message}"
                raise LineFault(str(error.code), message, "body.model", row.custom_id) from None
            self.models[model] = served.queue
        return self.models[model]


def read_line(data: bytes, number: int, endpoint: str, tenant: str) -> EncodedLine | LineFault:
    custom_id = None
    try:
        fields = parse(data)
        custom_id = custom_id_of(fields)
        if fields.get("url") != endpoint:
            raise invalid("url", fields.get("url"), f"this batch is of {endpoint}", "mismatched_url")
        row = read_row(number, custom_id, fields, lane=Lane.BATCH, tenant=tenant, queue="default")
        model = _model(fields["body"].get("model"))
        requests = encoded_prompts(row.requests)
    except InvalidRequest as error:
        return _of(custom_id, fault_of_body(error))
    except LineFault as fault:
        return _of(custom_id, fault)
    made = ApiEndpoint(endpoint)
    logprobs = row.request.sampling.logprobs
    # the requests of several prompts repeat what the line has once
    size = len(data) if row.prompts == 1 else sum(len(one.payload) for one in requests)
    line = EncodedLine(number, custom_id, made, model, row.digest, requests, logprobs)
    return replace(line, size=size, prompts=row.prompts, ignored=row.ignored)


def _of(custom_id: str | None, fault: LineFault) -> LineFault:
    fault.custom_id = custom_id
    return fault


def _model(model: Any) -> str:
    if model is None:
        raise LineFault("missing_field", "body.model: missing; give one of /v1/models", "body.model")
    if not isinstance(model, str):
        raise invalid("body.model", model, "give the name of a model, as /v1/models lists them")
    return model
