"""The engine's output: each step, with the engine's statistics after it, and refusals. The scheduler makes
them, the loop passes them on, and they are sent to the front unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Refused:
    """The request can never run here. `field` names the invalid field; `message` says why, and what to do.

    With a `trace`, reading the request raised an unexpected exception: `message` is its type, `trace` shows
    its place.
    """

    handle: int
    field: str
    message: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar of the request whose first row this is: it waits for its place in the batch, as others do.
    `waited_s`: from its arrival on."""

    handle: int
    waited_s: float


class EngineStats(NamedTuple):
    """State after a step, and counters since the engine started (…_total). A tuple, as Step is: it is sent
    with every step, and is encoded in a fifth of the time of data classes.
    """

    rows_running: int = 0
    rows_waiting: int = 0
    free_rows: int = 0
    blocks_used: int = 0  # by rows; these three add up to the pool
    blocks_cached: int = 0  # of no row, but holding a prefix that can be found again
    blocks_free: int = 0  # holding nothing
    step_s: float = 0.0
    step_tokens: int = 0
    prefix_queried_total: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_total: int = 0
    prompt_computed_total: int = 0
    output_total: int = 0
    preemptions_total: int = 0
    swapped_out_total: int = 0  # KV blocks copied to host memory
    swapped_in_total: int = 0
    states_saved_total: int = 0  # checkpoints of recurrent state made
    states_loaded_total: int = 0  # rows that began at one
    image_units_total: int = 0  # of images, encoded
    image_s_total: float = 0.0  # of encoding them
    image_bytes: int = 0  # of the features of images that are held, or kept for prompts to come
    drafted_total: int = 0  # draft tokens verified
    accepted_total: int = 0  # those of them that became output
    masked_rows_total: int = 0  # samples under a grammar, or limits of tokens
    forced_total: int = 0  # output tokens that a grammar left no choice about, and that were not sampled
    grammars_waiting: int = 0  # requests whose grammar is being compiled, or waits for that
    grammars_compiled_total: int = 0
    grammars_reused_total: int = 0  # found among those that were compiled before
    grammar_s_total: float = 0.0  # of compiling them, and of following earlier output through them


class Step(NamedTuple):
    """One settled step, in parallel lists. A handle's first token proves its admission.

    `admitted`: (handle, cached prompt tokens) of requests whose first choice entered the batch for the first
    time. A handle may have several tokens: what its grammar leaves no choice about follows the sampled one.
    `logprobs`: (index into tokens, logprob, top ids, top logprobs) for rows that requested them.
    `drafts`: (handle, draft tokens verified, those of them that are in `tokens`), of rows that had some.
    `finished`: (handle, reason) of choices that ended. Reasons: "stop" (an end id was sampled: it is in
    `tokens`, counts as output and is not part of the text), "length", "complete" (its grammar takes nothing
    more; the last token is text), "error" (its logits were not finite), "grammar_limit" (its grammar became
    too large to follow), "grammar_stuck" (no token fits its grammar, and its limits) and "limits_stuck" (its
    limits bar every token).
    `misfits`: (handle, why) of those in `finished` whose calls do not fit their schema, which the grammar
    kept in part only. `held`: choices that will end by "stop" with this token, once their calls are checked.
    """

    handles: list[int]
    tokens: list[int]
    finished: list[tuple[int, str]]
    admitted: list[tuple[int, int]]
    logprobs: list[tuple[int, float, list[int], list[float]]]
    stats: EngineStats
    drafts: Sequence[tuple[int, int, int]] = ()
    misfits: Sequence[tuple[int, str]] = ()
    held: Sequence[int] = ()
