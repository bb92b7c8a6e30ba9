"""Finds the samples of a launch with draft tokens that count: of each row, those up to the first that is not
the draft token after it. These are what it would have sampled one by one: each with its own noise, after the
same text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Int32, Sampled
from millstream_worker.engine.brain.batch.planner import Follows, Launch


def accepted(launch: Launch, sampled: Sampled) -> tuple[Launch, Sampled]:
    """Returns the launch and its samples without those that do not count. `slots` and `kv_lens` then have one
    entry for each row, `rows` and the samples one for each token that counts.
    """
    assert launch.follows is not None, "a launch without draft tokens"
    count = len(launch.follows.tokens)
    counts = np.ones(len(sampled.tokens), np.bool_)
    counts[:count] = _counted(launch.follows, sampled.tokens[:count])
    ends = np.ones(len(launch.slots), np.bool_)
    ends[:count] = counts[:count]
    ends[: count - 1] &= ~(counts[1:count] & launch.follows.drafted[:-1])
    kept = np.flatnonzero(counts)
    places = {int(index): place for place, index in enumerate(kept)}
    return (
        replace(
            launch,
            slots=launch.slots[ends],
            kv_lens=launch.kv_lens[ends],
            sample_slots=launch.sample_slots[kept],
            sample_lens=launch.sample_lens[kept],
            rows=[launch.rows[index] for index in kept],
            follows=None,
        ),
        Sampled(
            sampled.tokens[kept],
            {places[index]: one for index, one in sampled.logprobs.items() if index in places},
            tuple(places[index] for index in sampled.non_finite if index in places),
        ),
    )


def _counted(follows: Follows, tokens: Int32) -> NDArray[np.bool_]:
    """Returns a mask [E] of the decode segments whose input is the text that the row has."""
    right = (tokens == follows.tokens).tolist()
    counting = np.ones(len(right), np.bool_)
    for index in np.flatnonzero(follows.drafted).tolist():
        counting[index + 1] = counting[index] and right[index] and index not in follows.refused
    return counting
