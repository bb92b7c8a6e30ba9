"""Prefill by torch's paged FlashAttention, with a stand-in for it that computes by its contract: which layers
get it, and that all it is given is right. Run by test_kernels.py, as kernels.py is."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.engine.attention_step import RAGGED, Lens, Step, spec
from torch import Tensor

from millstream_worker.engine.runner.attention.triton import flash_prefill
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

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


@pytest.mark.parametrize("layer", [spec(dim=16), spec(6, 2, 24, window=7), spec(2, 2, 16)])
def test_it_is_given_what_it_needs(layer: LayerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def theirs(*given: Tensor, **named: Tensor) -> Tensor:
        called.append(named)
        return varlen(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(flash_prefill, "choose", lambda spec, storage: theirs)
    Step(layer, LENS).check(error=1e-5)
    assert called


def chosen(layer: LayerSpec, dtype: torch.dtype = torch.bfloat16, block_size: int = 256) -> bool:
    storage = KVStorage([layer], 1, block_size, dtype, torch.device("meta"))
    return flash_prefill.choose(layer, storage) is not None


def test_which_layers_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_prefill, "find", lambda: varlen)
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (8, 0))
    assert chosen(spec(8, 2, 128))
    assert chosen(spec(8, 2, 80, window=9), torch.float16, 512)
    assert not chosen(spec(8, 2, 128), torch.float32)
    assert not chosen(spec(8, 2, 128), block_size=16)
    assert not chosen(spec(8, 2, 128, softcap=9.0))
    assert not chosen(spec(8, 2, 128, sinks=True))
    assert not chosen(spec(8, 2, 512))
    assert not chosen(spec(8, 2, 64, value_dim=32))
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (7, 5))
    assert not chosen(spec(8, 2, 128))
    monkeypatch.undo()
    assert not chosen(spec(8, 2, 128)), "it needs a GPU"
