"""The images of a job in its prompt: each has a placeholder there, which the tokens of its features replace
once other processes have prepared it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.request import ImageSpan
from millstream_worker.images.messages import ImageTokens
from millstream_worker.jobs.context_exceeded import ContextExceeded
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import JobImages, digest_of
from millstream_worker.text.image_text import ImageText, image_parts


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


def replace_placeholders(job: Job, images: ImageText, tokens: Sequence[ImageTokens], most: int) -> None:
    """The prompt has the tokens of each image then. `tokens`: of each in the messages, in order; `most`: of
    the whole prompt. Raises InvalidRequest if it is longer.
    """
    prompt, runs = images.filled(job.request, job.input.prompt, tokens)
    own = job.input.images
    own.spans, own.files = tuple(map(ImageSpan, own.digests, runs)), {}
    if len(prompt) > most:
        count = "its image" if len(runs) == 1 else f"its {len(runs)} images"
        problem = (
            f"with {count} ({sum(len(one.ids) for one in tokens):,} tokens) the prompt has {len(prompt):,} "
            f"tokens; the model holds {most:,}; send fewer images"
        )
        raise ContextExceeded("messages", f"{len(prompt)} tokens", problem)
    job.input.prompt = tuple(prompt)
