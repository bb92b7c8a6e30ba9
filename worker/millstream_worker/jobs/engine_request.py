"""A job as a request to the engine."""

from __future__ import annotations

from dataclasses import replace

from millstream.wire.keys import LANES
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.jobs.job import Job


def engine_request(job: Job) -> EngineRequest:
    """With all tokens so far, which are prefilled again."""
    outputs = tuple(tuple(row.ids) for row in job.rows)
    return EngineRequest(
        handle=job.outputs.handle,
        prompt=job.input.prompt,
        max_tokens=job.input.max_tokens,
        sampling=sampling_of(job),
        choices=len(job.rows),
        outputs=outputs if any(outputs) else (),
        done=tuple(row.index for row in job.rows if row.reason is not None),
        priority=LANES.index(job.lane),
        deadline_ms=job.request.deadline_ms,
        tenant=job.request.tenant,
        salt=job.request.tenant,
        alone=job.attempt.alone,
        prediction=job.input.prediction,
        images=job.input.images.spans,
        grammar=job.input.grammar,
        limits=job.input.limits,
    )


def sampling_of(job: Job) -> SamplingSpec:
    asked = job.request.sampling
    shared = {name: getattr(asked, name) for name in SamplingSpec.__slots__ if hasattr(asked, name)}
    return replace(
        SamplingSpec(**shared),
        logit_bias=tuple(asked.logit_bias.items()),
        end_ids=job.input.end_ids,
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        seed=job.seed,
    )
