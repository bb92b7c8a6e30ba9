"""The step that is run to see what it takes: its size, its arithmetic, and that nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.serving import serve
from torch.utils._python_dispatch import TorchDispatchMode

from millstream_worker.engine.protocol.frames import LoadProgress, Tried
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.kv.pool_size import BadKVMemory, step_bytes
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.profiling import largest_step, run_largest_step, step_needs
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser

Load = Callable[[str], LoadedModel]


@pytest.mark.parametrize(
    ("tokens", "rows", "context"),
    [(1, 1, 1), (1, 8, 64), (64, 1, 64), (100, 7, 64), (100, 7, 999), (100, 100, 5), (999, 3, 20)],
)
def test_the_largest_step_has_the_most_tokens_and_draws(tokens: int, rows: int, context: int) -> None:
    plan = largest_step(tokens, rows, context=context, block_size=16, vocab_size=50)

    assert len(plan.row_slots) == len(plan.logit_indices) == len(plan.loads) == min(rows, tokens)
    assert (plan.query_lens[: plan.decodes] == 1).all()
    assert plan.query_lens.max() <= context
    assert plan.token_count == plan.query_starts[-1] == plan.query_lens.sum()
    if tokens <= rows * context // 2:
        assert plan.token_count == tokens
    chunks = slice(max(plan.decodes, 1), -1)
    assert (plan.kv_lens[chunks] == plan.query_lens[chunks]).all()
    assert plan.positions.max() == context - 1
    assert plan.positions.min() >= 0
    assert (plan.logit_indices == np.cumsum(plan.query_lens) - 1).all()
    assert plan.block_tables[0].shape == (min(rows, tokens), -(-context // 16))


@pytest.mark.parametrize("case", ["llama", "gpt2", "gemma2", "mixtral", "gpt_oss"])
def test_it_runs_and_leaves_no_trace(load: Load, case: str) -> None:
    loaded = replace(load(case), context_length=48)
    sampling = SamplingSpec(temperature=1.0, seed=5, repetition_penalty=1.2, top_logprobs=2)
    requests = [(0, EngineRequest(handle, (5, 60, 33, 9), 12, sampling)) for handle in range(3)]
    before = serve(loaded, requests, blocks=30)
    ran: list[int] = []
    embeddings = loaded.model.get_input_embeddings()
    hook = embeddings.register_forward_pre_hook(lambda _, given: ran.append(given[0].numel()))
    run_largest_step(loaded, NumpyChooser(), tokens=40, rows=6, block_size=4)
    hook.remove()
    assert ran == [40]
    assert serve(loaded, requests, blocks=30) == before


class Copies(TorchDispatchMode):
    """The shapes of tensors that are copied whole."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            self.shapes.append(args[0].shape)
        return func(*args, **(kwargs or {}))


def test_the_largest_step_holds_the_logits_twice(load: Load) -> None:
    """Rows with a grammar and log probabilities hold them twice, too."""
    loaded = replace(load("llama"), context_length=48)
    with Copies() as copies:
        run_largest_step(loaded, NumpyChooser(), tokens=40, rows=6, block_size=4)
    assert copies.shapes.count(torch.Size([6, loaded.vocab_size])) == 1


def test_what_is_kept_aside_is_the_peak_and_a_margin(load: Load) -> None:
    loaded, marks = load("llama"), []

    def measure(run: Callable[[], None]) -> int:
        run()
        return 1000

    said: list[str] = []
    size = {"tokens": 20, "rows": 4, "block_size": 4}
    aside = step_needs(
        loaded, NumpyChooser(), **size, measure=measure, report=said.append, mark=lambda: marks.append("on")
    )

    assert aside == 1250
    assert [LoadProgress(line).tried for line in said] == [Tried.LARGEST_STEP]
    assert len(marks) > len(loaded.layer_specs)  # a slow step is told from a stuck one


def test_a_step_that_never_fits_is_said_with_a_remedy(load: Load) -> None:
    def measure(run: Callable[[], None]) -> int:
        run()
        raise AssertionError("it fits")

    def exhausted() -> None:
        raise torch.OutOfMemoryError("tried to allocate 5 GiB")

    with pytest.raises(BadKVMemory, match=r"max_step_tokens 20 and max_rows 4 .* allocate 5 GiB; lower them"):
        step_needs(
            load("llama"), NumpyChooser(), tokens=20, rows=4, block_size=4, measure=measure, mark=exhausted
        )


def test_on_the_cpu_it_is_estimated(load: Load) -> None:
    loaded = load("llama")
    loaded.model.register_forward_pre_hook(lambda *_: pytest.fail("it is run"))
    expected = step_bytes(loaded.model, vocab_size=loaded.vocab_size, tokens=100, rows=4)

    assert loaded.device == torch.device("cpu")
    assert step_needs(loaded, NumpyChooser(), tokens=100, rows=4, block_size=16) == expected
