"""Tokenizes the input of a job within its bounds: a text that is certainly too long is refused before it is
decoded or encoded in full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millstream.errors import InvalidRequest
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.outline import outline
from millstream_worker.jobs.job import Job
from millstream_worker.text.model import TextModel
from millstream_worker.text.token_count import TooLong

_LARGE_BYTES = 64 * 1024  # beyond that a message is outlined before it is decoded


def check_outline(job: Job, text: TextModel, info: EngineInfo, bounds: JobBounds) -> None:
    """Raises InvalidRequest for a large input that is too long, unless only its end is used."""
    found = outline(job.entry.payload) if len(job.entry.payload) > _LARGE_BYTES else None
    if found is None:
        return
    job.input.request = found.request
    if found.request.sampling.truncate_prompt_tokens:
        return
    most = bounds.most_input(info)
    if found.field == "prompt":
        with _as_refusal("prompt", info, bounds):
            text.check_bytes(job.entry.payload, most, found.end - found.size, found.end)
    elif found.size > most:  # a message is one token at least
        unit = "tokens" if found.field == "token_ids" else "messages"
        raise bounds.too_long(found.field, f"{found.size} {unit}", info)


def prompt_of(job: Job, text: TextModel, info: EngineInfo, bounds: JobBounds) -> tuple[int, ...]:
    """Returns the token ids of the job's request. Raises InvalidRequest."""
    field, most = job.request.input_field, bounds.most_input(info)
    with _as_refusal(field, info, bounds):
        prompt = tuple(text.encode(job.request, most))
    if len(prompt) > most:
        raise bounds.too_long(field, f"{len(prompt)} tokens", info)
    return prompt


@contextlib.contextmanager
def _as_refusal(field: str, info: EngineInfo, bounds: JobBounds) -> Iterator[None]:
    try:
        yield
    except TooLong as error:
        if error.problem:
            raise InvalidRequest(field, error.size, error.problem) from None
        raise bounds.too_long(field, error.size, info) from None
