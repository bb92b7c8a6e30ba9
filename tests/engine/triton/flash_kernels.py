"""Prefill by torch's paged FlashAttention, with a stand-in for it that computes by its contract: which layers
get it, and that all it is given is right. Run by test_kernels.py, as kernels.py is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from support.attention_step import RAGGED, Lens, Step, spec
from torch import Tensor

from millstream_worker.engine.runner.attention import flash_prefill, prefill_choice
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.attention.prefill_choice import Way
from millstream_worker.engine.runner.attention.triton_backend import TritonAttention

LENS: Lens = [*RAGGED, (9, 4)]


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """As torch's documentation has it; causal where the right window is 0, aligned at the last token."""
    out = torch.empty_like(query)
    starts, lens = cu_seq_q.tolist(), seqused_k.tolist()
    assert len(starts) == len(lens) + 1 == len(block_table) + 1
    assert max(b - a for a, b in pairwise(starts)) == max_q
    assert max(lens) == max_k
    assert enable_gqa == (query.shape[1] != key.shape[2])
    for index, length in enumerate(lens):
        rows = slice(starts[index], starts[index + 1])
        keys, values = (
            cache[block_table[index].long()]
            .flatten(0, 1)[:length]
            .repeat_interleave(query.shape[1] // key.shape[2], 1)
            for cache in (key, value)
        )
        seen = torch.arange(length, device=query.device)
        own = seen[length - (rows.stop - rows.start) :, None]
        hidden = (seen > own + window_size[1]) | ((window_size[0] >= 0) & (seen < own - window_size[0]))
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


@pytest.fixture
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two segments; in float32, as the stand-in computes in it."""
    for name, value in (("_SEGMENTS", 2), ("_NEW_TOKENS", 5), ("_CACHED_TOKENS", 20)):
        monkeypatch.setattr(prefill_choice, name, value)
    monkeypatch.setattr(flash_prefill, "suits", lambda layer, dtype: not (layer.softcap or layer.sinks))


def timed(*seconds: float) -> Callable[[Way], float]:
    """Of the ways in turn: ours, then theirs."""
    taken = [*[seconds[0]] * 5, *[seconds[1]] * 5]
    return lambda way: taken.pop(0)


def chosen(
    layer: LayerSpec, theirs: flash_prefill.Attend, *seconds: float
) -> tuple[TritonAttention, Step, str]:
    step = Step(layer, LENS)
    empty = step.storage.keys[0].clone(), step.storage.values[0].clone()
    backend = TritonAttention(step.storage)
    (line,) = backend.choose_prefill(theirs, timed(*seconds))
    for cache, before in zip((step.storage.keys[0], step.storage.values[0]), empty, strict=True):
        cache.copy_(before)
    return backend, step, line


@pytest.mark.usefixtures("small_trials")
@pytest.mark.parametrize("layer", [spec(dim=16), spec(6, 2, 24, window=7), spec(2, 2, 16)])
def test_the_faster_way_answers_the_same(layer: LayerSpec) -> None:
    called = []

    def theirs(*given: Tensor, **named: Tensor) -> Tensor:
        called.append(named)
        return varlen(*given, **named)  # type: ignore[arg-type]

    backend, step, line = chosen(layer, theirs, 2e-3, 1e-3)
    called.clear()
    step.check(backend, error=1e-5)
    assert called
    assert line.endswith("own kernel 2.00 ms, torch's 1.00 ms; torch it is")


@pytest.mark.usefixtures("small_trials")
def test_where_our_kernel_is_faster_it_stays() -> None:
    backend, step, line = chosen(spec(dim=16), varlen, 1e-3, 2e-3)
    assert not backend._flash
    assert line.endswith("own kernel it is")
    step.check(backend)


@pytest.mark.usefixtures("small_trials")
def test_what_does_not_run_is_left_with_its_reason() -> None:
    def broken(*given: Tensor, **named: Tensor) -> Tensor:
        raise RuntimeError("page size must be a\nmultiple of 256")

    backend, step, line = chosen(spec(dim=16), broken, 2.0, 1.0)
    assert "(page size must be a multiple of 256); own kernel it is" in line
    step.check(backend)


@pytest.mark.usefixtures("small_trials")
@pytest.mark.parametrize("wrong", [0.1, float("nan")])
def test_what_computes_something_else_is_left(wrong: float) -> None:
    backend, _, line = chosen(spec(dim=16), lambda *given, **named: varlen(*given, **named) + wrong, 2.0, 1.0)
    assert not backend._flash
    assert "torch's differs by" in line


@pytest.mark.usefixtures("small_trials")
def test_layers_that_it_does_not_know_and_small_pools_are_not_tried() -> None:
    for layer in (spec(dim=16, sinks=True), spec(dim=16, softcap=5.0)):
        assert TritonAttention(Step(layer, LENS).storage).choose_prefill(varlen, timed(1.0, 1.0)) == []
    small = Step(spec(dim=16), [(3, 1)], block_size=4)
    assert TritonAttention(small.storage).choose_prefill(varlen, timed(1.0, 1.0)) == []
    assert TritonAttention(Step(spec(dim=16), LENS).storage).choose_prefill(None, timed(1.0, 1.0)) == []


@pytest.mark.parametrize(
    ("layer", "dtype", "suits"),
    [
        (spec(8, 2, 128), torch.bfloat16, True),
        (spec(8, 2, 80, window=9), torch.float16, True),
        (spec(8, 2, 128), torch.float32, False),
        (spec(8, 2, 128, softcap=9.0), torch.bfloat16, False),
        (spec(8, 2, 128, sinks=True), torch.bfloat16, False),
        (spec(8, 2, 512), torch.bfloat16, False),
        (spec(8, 2, 64, value_dim=32), torch.bfloat16, False),
    ],
)
def test_what_it_knows(layer: LayerSpec, dtype: torch.dtype, suits: bool) -> None:
    assert flash_prefill.suits(layer, dtype) == suits
