"""Mutants that concern images are seen by one part of the product alone: the brain, or a worker's jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.engine.brain import SIZES, ask
from support.engine.counting import Rig
from support.engine.counting_images import holding
from support.workers.image_bench import NotingEngine, job_with, prepared

from chaos.mutants import MUTANTS
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import ImageSpan
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.table import JobTable

RUNS = ((2, 5), (8, 4))  # of an image in a prompt


def _equal_prompts_about_two_images() -> None:
    """Everything that the counting model draws is compared with what it must see."""
    rig = Rig(Scheduler(SchedulerConfig(**SIZES | {"feature_bytes": 10, "image_bytes": 1000, "blocks": 64})))
    for handle, name in ((1, b"page"), (2, b"other")):
        request = replace(ask(handle, list(range(20)), 4), images=(ImageSpan(name, RUNS),))
        for image in holding(request, {name: 3}):
            rig.hold(image)
        rig.run(request)


def _a_job_whose_engine_dies() -> None:
    engine = NotingEngine()
    queue = EngineQueue(engine)
    job = job_with("a", "x", engine=engine)
    job.outputs.rows = [ChoiceOutput(0, None)]  # type: ignore[arg-type]  # it draws nothing
    JobTable(queue).take(job)
    queue.images.begin(job)
    for digest in queue.images.missing(job):
        queue.images.put([job], digest, prepared(), feature_bytes=1)
    assert queue.images.reserve(job, 1000)
    job.move(JobPhase.READY)
    queue.hand_over()
    queue.engine_lost()
    assert job.phase is JobPhase.PREPARING


@pytest.mark.parametrize(
    ("name", "scene"),
    [
        ("no digest of images", _equal_prompts_about_two_images),
        ("features of another place", _equal_prompts_about_two_images),
        ("engine without images", _a_job_whose_engine_dies),
    ],
)
def test_a_missing_safety_of_images_is_seen(name: str, scene: Callable[[], None]) -> None:
    scene()
    with MUTANTS[name].applied(), pytest.raises(AssertionError):
        scene()
