"""Whether a compiled library computes what it should: attention in a few small steps, linear layers, and
which token is the most likely, beside plain PyTorch. A compiler, or a processor that is not what it says,
shall not cost wrong tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.native.library import ENTRIES, Library
from millstream_worker.engine.runner.sampling.greedy import NativeGreedy

_BLOCK, _WIDTH = 16, 5  # tokens of a block, blocks of a row
_LAYERS = (
    LayerSpec(6, 2, 40, 40, scale=0.2),
    LayerSpec(3, 3, 48, 48, scale=0.2),
    LayerSpec(4, 2, 64, 32, scale=0.2, window=20, softcap=4.0, sinks=True),
)
_STEPS = ([70, 3, 17], [1, 1, 1], [1, 5, 1])  # new tokens of each row
_LINEAR = ((1, 48, 80), (7, 600, 130), (300, 1030, 200))  # rows, inputs, outputs
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}


class Mismatch(Exception):
    """It computes something else."""


@torch.inference_mode()
def check(library: Library) -> None:
    """Raises Mismatch."""
    _check_attention(library)
    _check_linear(library)
    _check_most_likely(library)


def _check_attention(library: Library) -> None:
    random = torch.Generator().manual_seed(0)
    for dtype in ENTRIES:
        storages = [KVStorage(_LAYERS, 3 * _WIDTH, _BLOCK, dtype, torch.device("cpu")) for _ in range(2)]
        native, plain = NativeAttention(storages[0], library), TorchAttention(storages[1])
        lens = [0, 0, 0]
        for new in _STEPS:
            lens = [length + count for length, count in zip(lens, new, strict=True)]
            plan = _plan(lens, new)
            native.begin(plan)
            plain.begin(plan)
            for layer, spec in enumerate(_LAYERS):
                query, key, value, sinks = _given(spec, sum(new), dtype, random)
                got, want = (b.attend(layer, query, key, value, sinks).float() for b in (native, plain))
                _compare(got, want, "attention", dtype)


def _check_linear(library: Library) -> None:
    """Of rows and weights of each type: a layer of float32 keeps its weights as bfloat16 if they are such."""
    if library.panels is None:
        return
    random = torch.Generator().manual_seed(0)
    for dtype, weights in library.panels.multiply:
        for count, inputs, outputs in _LINEAR:
            rows = torch.randn(count, inputs, generator=random).to(dtype)
            weight = (torch.randn(outputs, inputs, generator=random) / inputs**0.5).to(weights).to(dtype)
            bias = torch.randn(outputs, generator=random).to(dtype)
            got = PanelLinear(weight, bias, library.panels)(rows).float()
            _compare(got, functional.linear(rows.float(), weight.float(), bias.float()), "product", dtype)


def _check_most_likely(library: Library) -> None:
    random = torch.Generator().manual_seed(0)
    for dtype in library.most_likely:
        logits = torch.randn(9, 40_000, generator=random).to(dtype)  # enough for several threads
        logits[1, 7], logits[2, 39_999], logits[3] = torch.nan, torch.inf, -torch.inf
        logits[4] = -logits[4].abs()
        logits[4, [100, 20_000]] = torch.tensor([-0.0, 0.0], dtype=dtype)
        values = logits.float().numpy()
        want = values.argmax(-1)  # of the first NaN, where there is one
        non_finite = ~np.isfinite(values[np.arange(len(want)), want])
        tokens, unsound = NativeGreedy(library, len(values)).most_likely(logits)
        if not (
            np.array_equal(unsound, non_finite) and np.array_equal(tokens, np.where(non_finite, 0, want))
        ):
            raise Mismatch(f"the compiled search for the most likely token is wrong in {dtype}")


def _compare(got: torch.Tensor, want: torch.Tensor, what: str, dtype: torch.dtype) -> None:
    if not torch.allclose(got, want, atol=_TOLERANCE[dtype], rtol=_TOLERANCE[dtype]):
        far = float((got - want).abs().max())
        raise Mismatch(f"the compiled {what} is wrong: off by {far:.2g} in {dtype}")


def _given(
    spec: LayerSpec, tokens: int, dtype: torch.dtype, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    query = torch.randn(tokens, spec.heads, spec.key_dim, generator=random).to(dtype)
    key = torch.randn(tokens, spec.kv_heads, spec.key_dim, generator=random).to(dtype)
    value = torch.randn(tokens, spec.kv_heads, spec.value_dim, generator=random).to(dtype)
    return query, key, value, torch.randn(spec.heads, generator=random) if spec.sinks else None


def _plan(lens: Sequence[int], new: Sequence[int]) -> Plan:
    """Rows of such lengths after a step of so many new tokens each; nothing is sampled."""
    order = sorted(range(len(new)), key=lambda row: new[row] > 1)
    tables = [np.arange(_WIDTH) * len(new) + row for row in order]
    return packed_plan([new[row] for row in order], [lens[row] for row in order], tables, _BLOCK)
