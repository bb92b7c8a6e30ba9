"""Prepares a job for the engine: token ids, bounds, and choices that resume from its log. No I/O, so that
long inputs can be prepared in a thread. Of a job with images, `complete` waits until its prompt has them.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.wire.messages.job_messages import INPUTS, Request, RequestKind, read_request
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.intake.pictures.image_placeholders import images_of
from millstream_worker.intake.preparation.grammar_request import grammar_of, limits_of, thought_start
from millstream_worker.intake.preparation.job_bounds import JobBounds, check_token_ids
from millstream_worker.intake.preparation.prompt_tokens import check_outline, prompt_of
from millstream_worker.intake.preparation.resumed_rows import resume_rows
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.text.image_text import ImageText, without_parts
from millstream_worker.text.model import TextModel
from millstream_worker.text.sampling_defaults import NO_DEFAULTS, SamplingDefaults


def prepare(
    job: Job,
    started: StartReply,
    text: TextModel,
    info: EngineInfo,
    bounds: JobBounds,
    defaults: SamplingDefaults = NO_DEFAULTS,
    images: ImageText | None = None,
) -> None:
    """Fill in the job; of one with images, its rendered prompt and their files. Raises InvalidRequest if its
    payload is no valid request, or one that cannot be computed here; LogDamaged if its log cannot be resumed.
    """
    check_outline(job, text, info, bounds)
    request = without_parts(read_request(job.entry.payload))
    job.input.request, job.input.defaulted = defaults.fill(request)
    if request.images:
        job.input.images = images_of(request, images, info)
    job.input.prompt = prompt_of(job, text, info, bounds)
    if request.images and images is not None:
        images.check(request, job.input.prompt, len(job.input.images.digests))
        return
    complete(job, started, text, info, bounds)


def complete(job: Job, started: StartReply, text: TextModel, info: EngineInfo, bounds: JobBounds) -> None:
    """Fill in what depends on the whole prompt. Raises as `prepare`."""
    start = thought_start(job.request, job.input.prompt, text)
    ends = _turn_ends(job.request, text, info)
    job.input.grammar = grammar_of(job.request, start, text, ends)
    resume_rows(job, started, text, info.vocab_size, start)
    longest = bounds.max_tokens(job.request, len(job.input.prompt), info)
    job.input.max_tokens = min(longest, job.input.defaulted.get("max_tokens", longest))
    job.input.prediction = tuple(text.predicted(job.request.prediction or "", job.input.max_tokens))
    bounds.check_result(job.request, len(job.input.prompt))
    check_token_ids(job.request, info.vocab_size)
    job.input.limits = limits_of(job.request, start, text, info.vocab_size)
    asked = job.request.sampling
    if job.request.kind is RequestKind.COUNT:
        job.rows.clear()  # it is as well as any, and nothing is computed
    job.input.end_ids = (() if asked.ignore_eos else info.eos_ids + ends) + asked.stop_token_ids
    for row in job.rows:
        if row.reason is None and len(row.ids) >= job.input.max_tokens and not row.constrained:
            row.reason = "length"


def forget_input(job: Job) -> None:
    """Drop the text of the input, which has become token ids or was refused, and the allowed tokens, which
    are in the job's limits; keep the other fields.
    """
    if job.phase is not JobPhase.UNREAD:
        job.entry = replace(job.entry, payload=b"")  # up to 16 MiB that nobody reads again
    if job.phase is JobPhase.PREPARING:  # the rest is read with its images
        job.input.request = job.request.model_copy(update={"images": ()})
        return
    job.input.images.files = {}
    answer = ("chat_template_kwargs", "response_format", "tools", "tool_choice", "prediction")
    none = dict.fromkeys((*INPUTS, *answer)) | {"images": ()}
    sampling = job.request.sampling.model_copy(update={"allowed_token_ids": None})
    job.input.request = job.request.model_copy(update=none | {"sampling": sampling})


def _turn_ends(request: Request, text: TextModel, info: EngineInfo) -> tuple[int, ...]:
    """The tokens beside the model's own that end an answer. A chat never runs into the user's next turn; a
    plain prompt goes on as by transformers' `generate`.
    """
    if request.messages is None:
        return ()
    return tuple(token for token in text.turn_ends if token not in info.eos_ids)
