"""Answers about images are kept by the images, and by what the worker's image processor makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.engine.ready import INFO
from support.workers.image_bench import job_with

from millstream.wire.messages.sampling import SamplingParams
from millstream_worker.jobs.equal_jobs.cache_key import cache_key
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ServedModel


def _job(*images: str) -> Job:
    job = job_with("a", *images)
    job.input.prompt = (1, 2, 3)
    detokenizer: Any = None
    job.rows.append(ChoiceOutput(0, detokenizer))
    job.input.request = job.request.model_copy(update={"sampling": SamplingParams(temperature=0.0)})
    return job


def _key(job: Job, **facts: Any) -> bytes:
    unused: Any = None
    key = cache_key(job, ServedModel(unused, replace(INFO, digest="d", **facts)))
    assert key
    return key


def test_other_images_have_another_key() -> None:
    keys = {_key(_job(*images)) for images in ((), ("page",), ("other",), ("page", "page"))}
    assert len(keys) == 4
    assert _key(_job("page")) == _key(_job("page"))


def test_options_of_the_image_processor_count_for_images() -> None:
    options = '{"size": {"longest_edge": 512}}'
    assert _key(_job("page")) != _key(_job("page"), image_options=options)
    assert _key(_job()) == _key(_job(), image_options=options)
