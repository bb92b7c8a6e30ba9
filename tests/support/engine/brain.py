"""Short ways to a scheduler of a given size, and to requests for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from support.engine.counting import Rig

SIZES = {
    "max_rows": 8,
    "max_step_tokens": 64,
    "block_size": 4,
    "blocks": 64,
    "context_length": 200,
    "prefix_cache": True,
    "hash_seed": b"test",
    "patience_s": 1e9,
    "sharing": SharingCosts(row=0, step=0),
}


def rig_of(*requests: EngineRequest, **sizes: Any) -> Rig:
    """Of these sizes, with these requests waiting."""
    rig = Rig(Scheduler(SchedulerConfig(**SIZES | sizes)))
    rig.add(*requests)
    return rig


def ask(handle: int, prompt: int | Iterable[int], max_tokens: int = 4, **fields: Any) -> EngineRequest:
    """`prompt`: token ids, or how many (then no two handles share any). Sampling fields go to the
    sampling."""
    ids = range(1000 * handle, 1000 * handle + prompt) if isinstance(prompt, int) else prompt
    spec = {name: fields.pop(name) for name in SamplingSpec.__slots__ if name in fields}
    return EngineRequest(handle, tuple(ids), max_tokens, SamplingSpec(**spec), **fields)
