"""Prepares a job for the engine: token ids, bounds, and choices that resume from its log. No I/O, so that
long inputs can be prepared in a thread. A job with images is prepared in two parts: its prompt is known, and
completed, once other processes have prepared them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.job_messages import INPUTS, Request, RequestKind, read_request
from millstream.wire.messages.record import DELTA
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import LogEntry, StartReply
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.request import ImageSpan
from millstream_worker.images.messages import ImageTokens
from millstream_worker.intake.grammar_request import (
    grammar_of,
    has_thought_in_text,
    limits_of,
    thought_start,
    tool_call_mode,
)
from millstream_worker.intake.outline import outline
from millstream_worker.jobs import encoding
from millstream_worker.jobs.call_output import CallOutput
from millstream_worker.jobs.context_exceeded import ContextExceeded
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import JobImages, digest_of
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.continued_turn import goes_on
from millstream_worker.text.image_text import ImageText, image_parts, without_parts
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart
from millstream_worker.text.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from millstream_worker.text.token_count import TooLong

_LARGE_BYTES = 64 * 1024  # beyond that a message is outlined before it is decoded
_MOST_JOB_TOKENS = 8 * 2**20  # of all its choices with the prompt: they go to an engine in one frame


class LogDamaged(Exception):
    """The token log of earlier attempts has a gap, or an entry that no worker wrote."""


@dataclass(frozen=True, slots=True)
class JobBounds:
    """The operator's limits per job. Tokens 0: limited only by the context."""

    prompt_tokens: int
    output_tokens: int
    result_bytes: int


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
    most = _most_input(info, bounds)
    if len(job.entry.payload) > _LARGE_BYTES:
        _check_outline(job, text, most, info, bounds)
    request = without_parts(read_request(job.entry.payload))
    job.input.request, job.input.defaulted = defaults.fill(request)
    if request.images:
        job.input.images = images_of(request, images, info)
    job.input.prompt = _prompt(job.request, text, most, info, bounds)
    if request.images and images is not None:
        images.check(request, job.input.prompt, len(job.input.images.digests))
        return
    complete(job, started, text, info, bounds)


def complete_with_images(
    job: Job,
    started: StartReply,
    text: TextModel,
    info: EngineInfo,
    bounds: JobBounds,
    images: ImageText,
    tokens: Sequence[ImageTokens],
) -> None:
    """The rest of `prepare`. `tokens`: of each image in the messages, in order."""
    thinks = text.think is not None
    prompt, runs = images.filled(job.request, job.input.prompt, tokens, thinks=thinks)
    own = job.input.images
    own.spans, own.files = tuple(map(ImageSpan, own.digests, runs)), {}
    most = _most_input(info, bounds)
    if len(prompt) > most:
        count = "its image" if len(runs) == 1 else f"its {len(runs)} images"
        problem = (
            f"with {count} ({sum(len(one.ids) for one in tokens):,} tokens) the prompt has {len(prompt):,} "
            f"tokens; the model holds {most:,}; send fewer images"
        )
        raise ContextExceeded("messages", f"{len(prompt)} tokens", problem)
    job.input.prompt = tuple(prompt)
    complete(job, started, text, info, bounds)


def complete(job: Job, started: StartReply, text: TextModel, info: EngineInfo, bounds: JobBounds) -> None:
    """Fill in what depends on the whole prompt. Raises as `prepare`."""
    start = thought_start(job.request, job.input.prompt, text)
    ends = _turn_ends(job.request, text, info)
    job.input.grammar = grammar_of(job.request, start, text, ends)
    _take_log(job, started, text, info.vocab_size, start)
    longest = _max_tokens(job.request, len(job.input.prompt), info, bounds)
    job.input.max_tokens = min(longest, job.input.defaulted.get("max_tokens", longest))
    job.input.prediction = tuple(text.predicted(job.request.prediction or "", job.input.max_tokens))
    _check_result(job.request, len(job.input.prompt), bounds)
    _check_ids(job.request, info)
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


def images_of(request: Request, images: ImageText | None, info: EngineInfo) -> JobImages:
    """Raises InvalidRequest for images that this model does not read."""
    parts = list(image_parts(request))
    files = [image.data for image in request.images]
    if not parts:
        raise InvalidRequest("images", len(files), "stand in no message; name each in a part of one")
    field, first = parts[0]
    if images is None:
        problem = (
            f"this queue's model, {info.model}, reads text only; send the page's text, or a queue with a "
            "vision model"
        )
        raise InvalidRequest(field, first, problem)
    if request.sampling.truncate_prompt_tokens is not None:
        problem = "cannot cut a prompt with images; leave it out"
        asked = request.sampling.truncate_prompt_tokens
        raise InvalidRequest("sampling.truncate_prompt_tokens", asked, problem)
    for field, number in parts:
        if number >= len(files):
            raise InvalidRequest(field, number, f"there are {len(files)} images; count from 0")
    by_number = [digest_of(data) for data in files]
    used = {by_number[number]: files[number] for _, number in parts}
    digests = tuple(by_number[number] for _, number in parts)
    return JobImages(digests, tuple(field for field, _ in parts), used)


def _turn_ends(request: Request, text: TextModel, info: EngineInfo) -> tuple[int, ...]:
    """The tokens beside the model's own that end an answer. A chat never runs into the user's next turn; a
    plain prompt goes on as by transformers' `generate`.
    """
    if request.messages is None:
        return ()
    return tuple(token for token in text.turn_ends if token not in info.eos_ids)


def _take_log(job: Job, started: StartReply, text: TextModel, vocab_size: int, start: ThoughtStart) -> None:
    asked = job.request.sampling
    bodies, deltas = _logged(started)
    for delta in deltas:
        _check_logged(delta, asked, vocab_size)
    job.log.written = bodies
    job.log.acknowledged = len(bodies)
    mode, begun = tool_call_mode(job.request, job.id, text, start), goes_on(job.request)
    for index in range(asked.n):
        special = not asked.skip_special_tokens
        detokenizer = text.detokenizer(
            asked.stop,
            asked.min_tokens,
            calls=mode is not None,
            special=special,
            with_stop=asked.include_stop_str_in_output,
            begun=begun,
        )
        row = ChoiceOutput(index, detokenizer, watched=bool(asked.stop))
        row.constrained = job.input.grammar is not None
        row.calling = None if mode is None else CallOutput(mode, index)
        row.logprobs = [] if asked.logprobs else None
        own = [delta for delta in deltas if delta.index == index]
        if not has_thought_in_text(own, start, text):
            row.thought = text.thought(start, special=special, calls=mode is not None)
            row.watched |= row.thought is not None and row.thought.ends_answer
        try:
            row.resume(own)
        except ProtocolError as error:
            raise LogDamaged(str(error)) from error
        job.rows.append(row)


def _logged(started: StartReply) -> tuple[list[bytes], list[ChoiceDelta]]:
    """The log's bodies in order, and their deltas."""
    entries: Sequence[LogEntry] = [entry for entry in started.log if entry.kind == DELTA]
    if [entry.seq for entry in entries] != list(range(1, started.last_seq + 1)):
        raise LogDamaged(f"the token log should hold 1 to {started.last_seq}, but has {len(entries)} entries")
    try:
        bodies = [codec.decode(Delta, entry.body, codec.MAX_RESULT_BYTES) for entry in entries]
    except ProtocolError as error:
        raise LogDamaged(str(error)) from error
    return [entry.body for entry in entries], [part for body in bodies for part in body.choices]


def _check_logged(delta: ChoiceDelta, asked: SamplingParams, vocab_size: int) -> None:
    """Check the content as a worker would write it; invalid content would kill one engine after the other."""
    if not 0 <= delta.index < asked.n:
        raise LogDamaged(f"the token log has choice {delta.index}, and {asked.n} were asked for")
    if any(token >= vocab_size for token in delta.token_ids):
        raise LogDamaged(f"the token log holds a token beyond the vocabulary of {vocab_size}")
    if asked.logprobs and len(delta.logprobs or ()) != len(delta.token_ids):
        raise LogDamaged("the token log has other log-probabilities than tokens")


def _most_input(info: EngineInfo, bounds: JobBounds) -> int:
    """Most prompt tokens: at least one output token has to fit, too."""
    held = info.longest_row - 1
    return min(held, bounds.prompt_tokens) if bounds.prompt_tokens else held


def _check_outline(job: Job, text: TextModel, most: int, info: EngineInfo, bounds: JobBounds) -> None:
    """Refuse an input that is certainly too long before it is decoded, unless only its end is used."""
    found = outline(job.entry.payload)
    if found is None:
        return
    job.input.request = found.request
    if found.request.sampling.truncate_prompt_tokens:
        return
    if found.field == "prompt":
        with _as_refusal("prompt", info, bounds):
            text.check_bytes(job.entry.payload, most, found.end - found.size, found.end)
    elif found.size > most:  # a message is one token at least
        unit = "tokens" if found.field == "token_ids" else "messages"
        raise _too_long(found.field, f"{found.size} {unit}", info, bounds)


def _prompt(
    request: Request, text: TextModel, most: int, info: EngineInfo, bounds: JobBounds
) -> tuple[int, ...]:
    field = request.input_field
    with _as_refusal(field, info, bounds):
        prompt = tuple(text.encode(request, most))
    if len(prompt) > most:
        raise _too_long(field, f"{len(prompt)} tokens", info, bounds)
    return prompt


@contextlib.contextmanager
def _as_refusal(field: str, info: EngineInfo, bounds: JobBounds) -> Iterator[None]:
    try:
        yield
    except TooLong as error:
        if error.problem:
            raise InvalidRequest(field, error.size, error.problem) from None
        raise _too_long(field, error.size, info, bounds) from None


def _too_long(field: str, size: str, info: EngineInfo, bounds: JobBounds) -> InvalidRequest:
    if not 0 < bounds.prompt_tokens < info.longest_row:
        return ContextExceeded.by_input(field, size, info)
    problem = (
        f"this worker takes inputs of {bounds.prompt_tokens} tokens (its MILLSTREAM_MAX_PROMPT_TOKENS); "
        "shorten it"
    )
    return InvalidRequest(field, size, problem)


def _check_result(request: Request, prompt_tokens: int, bounds: JobBounds) -> None:
    """Refuse a request whose result cannot fit even if every token is the shortest."""
    asked = request.sampling
    ids = prompt_tokens if request.return_token_ids else 0
    if ids > bounds.result_bytes:
        raise InvalidRequest(
            "return_token_ids",
            True,
            f"the ids of {ids} prompt tokens take at least as many bytes and a result may take "
            f"{bounds.result_bytes}; leave it out, or raise the worker's MILLSTREAM_MAX_RESULT_BYTES",
        )
    if asked.max_tokens is None:  # its length is unknown: it is checked while it grows
        return
    a_token = 1 + (encoding.least_logprob_bytes(asked.top_logprobs) if asked.logprobs else 0)
    least = ids + asked.n * asked.max_tokens * a_token
    if least > bounds.result_bytes:
        raise InvalidRequest(
            "sampling.max_tokens",
            asked.max_tokens,
            f"a result of {asked.n} x {asked.max_tokens} tokens, each of at least {a_token} bytes, may take "
            f"{least} bytes and a result may take {bounds.result_bytes}; ask for fewer tokens, choices or "
            "top_logprobs, or raise the worker's MILLSTREAM_MAX_RESULT_BYTES",
        )


def _max_tokens(request: Request, prompt_tokens: int, info: EngineInfo, bounds: JobBounds) -> int:
    """Output tokens per choice: with the prompt they have to fit into the model's context and the KV pool."""
    limit = info.longest_row
    asked = request.sampling.max_tokens
    if asked is not None and prompt_tokens + asked > limit:
        raise ContextExceeded.by_output(asked, request.input_field, prompt_tokens, info)
    bound = bounds.output_tokens or limit
    if asked is not None and asked > bound:
        raise InvalidRequest(
            "sampling.max_tokens",
            asked,
            f"this worker gives {bound} tokens (its MILLSTREAM_MAX_OUTPUT_TOKENS); ask for fewer, or leave "
            "max_tokens out",
        )
    choices = request.sampling.n
    most = (_MOST_JOB_TOKENS - prompt_tokens) // choices
    if (asked or 0) > most:
        raise InvalidRequest(
            "sampling.max_tokens",
            asked,
            f"{choices} choices with their input may have {_MOST_JOB_TOKENS} tokens together, {most} each; "
            "ask for fewer tokens or choices",
        )
    return asked or min(limit - prompt_tokens, bound, most)


def _check_ids(request: Request, info: EngineInfo) -> None:
    for field, ids in (
        ("sampling.logit_bias", request.sampling.logit_bias),
        ("sampling.stop_token_ids", request.sampling.stop_token_ids),
        ("sampling.allowed_token_ids", request.sampling.allowed_token_ids or ()),
    ):
        beyond = [token_id for token_id in ids if token_id >= info.vocab_size]
        if beyond:
            raise InvalidRequest(
                field, beyond[0], f"is beyond the vocabulary of {info.vocab_size} tokens; use ids below it"
            )
