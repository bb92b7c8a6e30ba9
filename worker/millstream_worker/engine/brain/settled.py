"""What the loop is told of a step that is done."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from millstream_worker.engine.brain.plan import Drawn


@dataclass(frozen=True, slots=True)
class Settled:
    """What a step brought, in the lists of a Step frame."""

    handles: list[int]
    tokens: list[int]
    finished: list[tuple[int, str]]
    admitted: list[tuple[int, int]]
    logprobs: list[tuple[int, float, list[int], list[float]]]


def logprobs_left(drawn: Drawn, dropped: list[int]) -> list[tuple[int, float, list[int], list[float]]]:
    """Of the draws that were not dropped, in their order, by their index among them."""
    return [
        (index - bisect_left(dropped, index), values.logprob, list(values.top_ids), list(values.top_logprobs))
        for index, values in sorted(drawn.logprobs.items())
        if index not in dropped
    ]
