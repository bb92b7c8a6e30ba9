"""All targets by name, in the order of the table."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import (
    batch,
    client,
    codec,
    commands,
    control,
    engine,
    jobs,
    names,
    queue,
    sampling,
    scrapes,
    streams,
    text,
)

ALL: tuple[Target, ...] = (
    *codec.TARGETS,
    *queue.TARGETS,
    *jobs.TARGETS,
    *control.TARGETS,
    *streams.TARGETS,
    *names.TARGETS,
    *client.TARGETS,
    *batch.TARGETS,
    *text.TARGETS,
    *sampling.TARGETS,
    *engine.TARGETS,
    *scrapes.TARGETS,
    *commands.TARGETS,
)
BY_NAME = {target.name: target for target in ALL}
