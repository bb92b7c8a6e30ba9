"""What comes out of the engine: each step, with the figures of the engine after it, and refusals. The
scheduler makes them, the loop hands them on, and they are sent to the front as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Refused:
    """The request can never run here. `field` of it is wrong; `message` says how, and what to do."""

    handle: int
    field: str
    message: str


class EngineStats(NamedTuple):
    """State after a step, and counters since the engine started (…_total). A tuple, as Step is: what comes
    with every step is encoded in a fifth of the time of data classes."""

    rows_running: int = 0
    rows_waiting: int = 0
    free_rows: int = 0
    blocks_used: int = 0  # by rows; these three add up to the pool
    blocks_cached: int = 0  # by no row, but holding a prefix that can be found again
    blocks_free: int = 0  # holding nothing
    step_s: float = 0.0
    step_tokens: int = 0
    prefix_queried_total: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_total: int = 0
    prompt_computed_total: int = 0
    output_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    swapped_out_total: int = 0  # KV blocks copied to host memory
    swapped_in_total: int = 0
    waste_tokens: int = 0  # places in the blocks of the batch that hold nothing: below one block a row


class Step(NamedTuple):
    """One settled step, in parallel lists. A handle's first token is its admission's proof.

    `admitted`: (handle, cached prompt tokens) of requests whose first choice entered the batch for the first
    time. `logprobs`: (index into tokens, logprob, top ids, top logprobs) for rows that asked.
    `finished`: (handle, reason) of choices that ended, reason "stop" (an end id was drawn: it is in `tokens`,
    counts as output and is no part of the text), "length", or "error" (its logits were no numbers).
    """

    handles: list[int]
    tokens: list[int]
    finished: list[tuple[int, str]]
    admitted: list[tuple[int, int]]
    logprobs: list[tuple[int, float, list[int], list[float]]]
    stats: EngineStats
