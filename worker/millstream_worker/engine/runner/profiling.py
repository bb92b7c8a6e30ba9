"""Measures what the largest step takes beside weights and pool, by running it once before there is a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, TokenMasks, packed_plan
from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.forward import Eager, storage_of_states
from millstream_worker.engine.runner.kv.pool_size import BadKVMemory, step_bytes
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.runner import Mark, Runner
from millstream_worker.engine.runner.sampling.chooser import Chooser
from millstream_worker.engine.runner.sampling.sampler import Sampler

Measure = Callable[[Callable[[], None]], int]  # runs what it is given; bytes taken at the peak of it

_GAPS = 1.25  # steps of other shapes leave gaps in the allocator's memory that this one does not show
_DEAREST = SamplingSpec(  # every kind of sampling at once
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    logit_bias=((0, 0.5),),
    min_tokens=1,
    end_ids=(0,),
    top_logprobs=20,
)


def step_needs(
    loaded: LoadedModel,
    chooser: Chooser,
    *,
    tokens: int,
    rows: int,
    block_size: int,
    measure: Measure | None = None,
    report: Callable[[str], None] = lambda _: None,
    mark: Mark = lambda: None,
) -> int:
    """Returns the bytes to keep aside for a step of `tokens` new tokens and `rows` rows that sample one. It
    is measured on CUDA, or by `measure`, which is reported when it begins.

    Elsewhere it is estimated: a process' memory does not shrink between load and step, so that what the step
    takes is hidden by what loading took, and computing one may take longer than the start (5 s of a 135M
    model on one core). Raises BadKVMemory where such a step does not even fit without a pool.
    """
    if measure is None and loaded.device.type == "cuda":
        measure = cuda_peak(loaded.device)
    if measure is None:
        return step_bytes(loaded.model, vocab_size=loaded.vocab_size, tokens=tokens, rows=rows)

    report(f"{Tried.LARGEST_STEP}, {tokens:,} tokens and {rows} rows")

    def run() -> None:
        try:
            run_largest_step(loaded, chooser, tokens=tokens, rows=rows, block_size=block_size, mark=mark)
        except MemoryError as error:
            raise BadKVMemory(
                f"a step of max_step_tokens {tokens} and max_rows {rows} does not fit on {loaded.device} "
                f"beside the weights: {error}; lower them"
            ) from error

    return int(measure(run) * _GAPS)


def run_largest_step(
    loaded: LoadedModel,
    chooser: Chooser,
    *,
    tokens: int,
    rows: int,
    block_size: int,
    mark: Mark = lambda: None,
) -> None:
    """Computes the largest step, at the end of the longest context, over a storage of one block that stands
    for all, with a grammar for each row: what it answers means nothing."""
    plan = largest_step(
        tokens, rows, context=loaded.context_length, block_size=block_size, vocab_size=loaded.vocab_size
    )
    storage = KVStorage(loaded.layer_specs, 1, block_size, loaded.dtype, loaded.device)
    sampler = Sampler(loaded.vocab_size, rows, loaded.device, chooser)
    states = storage_of_states(loaded, rows, 0)
    model = Eager(loaded, storage, sampler.last_tokens, mark, states)
    runner = Runner(model, sampler, mark, states=states)
    samples, words = len(plan.logit_indices), -(-loaded.vocab_size // 32)
    anything = TokenMasks(np.arange(samples, dtype=np.int32), np.full((samples, words), -1, np.int32))
    launched = runner.forward(plan)
    runner.sample(launched, anything)
    runner.settle(launched)


def largest_step(tokens: int, rows: int, *, context: int, block_size: int, vocab_size: int) -> Plan:
    """One half of the rows decodes, the other has the rest of the tokens, in chunks of like size. One row of
    each kind ends where the context does: more would take longer, and no more memory. All blocks are block 0.
    """
    rows = min(rows, tokens)
    decodes = rows // 2
    chunks = [len(part) for part in np.array_split(np.arange(tokens - decodes), rows - decodes)]
    lens = [1] * decodes + [min(chunk, context) for chunk in chunks]
    ends = np.array(lens)
    ends[[0, -1]] = context
    table = np.zeros((rows, -(-context // block_size)), np.int32)
    plan = packed_plan(lens, ends, table, block_size, samples=True)
    return replace(
        plan,
        loads=tuple(RowLoad(slot, _DEAREST, (1, 2, 3), ()) for slot in range(rows)),
        tokens=(np.arange(plan.token_count) % vocab_size).astype(np.int32),
        noise=np.full(rows, 0.5),
    )


def cuda_peak(device: torch.device) -> Measure:
    """Returns a measure of what torch has taken from the device, its own gaps included."""

    def measure(run: Callable[[], None]) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_reserved(device) - before
        torch.cuda.empty_cache()
        return peak

    return measure
