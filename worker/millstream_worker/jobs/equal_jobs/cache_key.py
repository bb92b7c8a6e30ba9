"""The key of a job's answer: equal for jobs of one tenant that workers answer with equal tokens."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace

from millstream_worker.jobs.engine_request import sampling_of
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.served_model import ServedModel

_FORMAT = 4  # of the key and of the results kept under it


def cache_key(job: Job, served: ServedModel) -> bytes:
    """SHA-256 of everything that its answer depends on; empty where answers differ (a temperature without a
    seed), may not be kept, or are of a model without a digest.
    """
    if not served.info.digest or not job.request.may_be_kept or job.attempt.alone:
        return b""
    asked = job.request.sampling
    sampling = sampling_of(job) if asked.temperature else replace(sampling_of(job), seed=0)
    calling = job.rows[0].calling
    parts = (
        _FORMAT,
        served.facts.of_result(),
        served.info.dtype,
        job.request.tenant,
        sampling,
        job.input.max_tokens,
        job.input.end_ids,
        len(job.rows),
        asked.stop,
        asked.include_stop_str_in_output,
        asked.skip_special_tokens,
        job.input.grammar,
        job.input.limits,
        calling and (calling.mode.reason, calling.mode.free),
        job.rows[0].thought is not None,
        job.request.continue_final_message,
    )
    whole = hashlib.sha256(array("q", job.input.prompt).tobytes())
    if job.input.images.digests:
        options = hashlib.sha256(served.info.image_options.encode("utf-8", "surrogatepass"))
        whole.update(options.digest() + b"".join(job.input.images.digests))
    whole.update(repr(parts).encode("utf-8", "surrogatepass"))
    return whole.digest()
