"""Checks that recorded steps compute what the same steps compute when they are called from Python: decoding
rows, with and without a prefix group, and chunks of prompts, each twice with other tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
def check_replay(
    eager: Eager, replay: Callable[[Plan], Tensor | None], steps: Iterable[Plan]
) -> float | None:
    """Returns the largest deviation of the logits; None if no step was compared, as `replay` returns None for
    one that is not recorded. Raises Mismatch. Writes to the pool, in which no row may have a block."""
    loaded, found = eager.loaded, []
    eager.run(_prefix(eager.storage.block_size))
    for number, plan in enumerate(steps):
        given = replace(plan, tokens=_tokens(plan.token_count, number, loaded.vocab_size))
        expected = eager.run(given).clone()
        got = replay(given)
        if got is not None:
            what = f"a recorded step of {len(plan.query_lens)} rows and {plan.token_count} tokens"
            found.append(compare_logits(got, expected, what, loaded.dtype))
    return max(found, default=None)


def most_rows(eager: Eager, rows: int) -> int:
    """For how many of so many rows the pool has room in the steps of the check; 0: there is none for them."""
    storage = eager.storage
    return min(rows, storage.blocks - 1) if eager.loaded.context_length >= storage.block_size + 2 else 0


def decode_steps(most: int, block_size: int) -> Iterator[Plan]:
    """For up to `most` rows, over one block more than that. In block 0 is the prefix, a block long."""
    for rows in sorted({1, min(3, most), most}):
        own = 1 + np.arange(rows)[:, None]
        for context in (1, 2):
            yield _plan([1] * rows, [context] * rows, own, block_size)
        tables = np.hstack([np.zeros_like(own), own])
        for context in (1, 2) if rows > 1 else ():
            yield sharing(_plan([1] * rows, [block_size + context] * rows, tables, block_size), block_size)


def mixed_steps(most: int, block_size: int) -> Iterator[Plan]:
    """Chunks of prompts, fresh and later ones, with and without a decoding row."""
    chunk = min(_CHUNK, block_size)
    for size in (chunk, chunk - 1):
        if size > 1:
            yield _plan([size], [size], [[1]], block_size)
    for context in (2, 3) if most > 1 and chunk > 1 else ():
        yield _plan([1, chunk], [context, chunk], [[1], [2]], block_size)
        later = [[0, 1], [0, 2]]
        yield _plan([1, 2], [block_size + context - 1, block_size + 2], later, block_size)


def _prefix(block_size: int) -> Plan:
    return _plan([block_size], [block_size], [[0]], block_size)


def _plan(query_lens: Sequence[int], kv_lens: Sequence[int], tables: ArrayLike, block_size: int) -> Plan:
    return packed_plan(query_lens, kv_lens, tables, block_size, samples=True)


def _tokens(count: int, number: int, vocab_size: int) -> np.ndarray:
    return (((np.arange(count) + 1) * (7919 + number)) % vocab_size).astype(np.int32)
