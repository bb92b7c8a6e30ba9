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
    gateway,
    images,
    jobs,
    names,
    queue,
    sampling,
    scrapes,
    shapes,
    streams,
    text,
)  # fmt: skip

_WIRE = (codec, queue, jobs, control, streams, names)
_PROGRAMS = (client, batch, text, images, sampling, engine, scrapes, gateway, shapes, commands)
ALL: tuple[Target, ...] = tuple(one for module in (*_WIRE, *_PROGRAMS) for one in module.TARGETS)
BY_NAME = {target.name: target for target in ALL}
