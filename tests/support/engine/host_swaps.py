"""Plans that copy blocks between device and host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millstream_worker.engine.brain.batch.plan import Plan
from support.engine.brain import ask, rig_of

Pairs = list[tuple[int, int]]


def copies(out: Pairs, into: Pairs) -> Plan:
    """Any plan, with these copies: (block, place) out, (place, block) in."""
    rig = rig_of()
    rig.add(ask(1, 3))
    rig.step()
    swap_out, swap_in = (np.array(pairs, np.int32).reshape(-1, 2) for pairs in (out, into))
    return replace(rig.plans[0], swap_out=swap_out, swap_in=swap_in)
