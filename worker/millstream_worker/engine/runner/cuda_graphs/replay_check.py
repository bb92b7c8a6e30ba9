"""Checks that recorded steps compute what the same steps compute when they are called from Python: decoding
rows, with and without a prefix group, and a step with a chunk of a prompt, each twice with other tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.self_check.attention_steps import sharing
from millstream_worker.engine.runner.self_check.deviation import compare_logits

_CHUNK = 21  # tokens


@torch.inference_mode()
def check_replay(eager: Eager, replay: Callable[[Plan], Tensor | None], rows: int) -> float:
    """Returns the largest deviation of the logits, of steps of up to so many rows. Raises Mismatch. `replay`
    returns None for a step that is not recorded. Writes to the pool, in which no row may have a block."""
    loaded, storage, worst = eager.loaded, eager.storage, 0.0
    if storage.blocks < 2 or loaded.context_length < storage.block_size + 2:
        return worst  # no room for the steps
    for number, plan in enumerate(replay_steps(min(rows, storage.blocks - 1), storage.block_size)):
        given = replace(plan, tokens=_tokens(plan.token_count, number, loaded.vocab_size))
        expected = eager.run(given).clone()
        got = replay(given)
        if got is not None:
            what = f"a recorded step of {len(plan.query_lens)} rows and {plan.token_count} tokens"
            worst = max(worst, compare_logits(got, expected, what, loaded.dtype))
    return worst


def replay_steps(most: int, block_size: int) -> Iterator[Plan]:
    """Steps for up to `most` rows, over one block more than that. Block 0 is computed first: the prefix."""
    yield _plan([block_size], [block_size], [[0]], block_size)
    for rows in sorted({1, min(3, most), most}):
        own = 1 + np.arange(rows)[:, None]
        for context in (1, 2):
            yield _plan([1] * rows, [context] * rows, own, block_size)
        tables = np.hstack([np.zeros_like(own), own])
        for context in (1, 2) if rows > 1 else ():
            yield sharing(_plan([1] * rows, [block_size + context] * rows, tables, block_size), block_size)
    chunk = min(_CHUNK, block_size)
    if most > 1:
        for context in (2, 3):
            yield _plan([1, chunk], [context, chunk], [[1], [2]], block_size)


def _plan(query_lens: Sequence[int], kv_lens: Sequence[int], tables: ArrayLike, block_size: int) -> Plan:
    return packed_plan(query_lens, kv_lens, tables, block_size, samples=True)


def _tokens(count: int, number: int, vocab_size: int) -> np.ndarray:
    return (((np.arange(count) + 1) * (7919 + number)) % vocab_size).astype(np.int32)
