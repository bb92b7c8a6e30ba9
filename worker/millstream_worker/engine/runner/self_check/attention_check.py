"""Checks an attention backend on its device: each kind of layer of the loaded model, in its dtype, beside
plain PyTorch in float32; and that it has stored its keys and values, and nothing else, bit by bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec, kv_name
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_steps import CONTEXTS, attention_steps
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, Mismatch, compare

_SHORT_WINDOW = 100  # tokens: it begins and ends within blocks, and cuts chunks as well as decoding rows


@torch.inference_mode()
def check_attention(
    backend_over: Callable[[KVStorage], AttentionBackend],
    layers: Sequence[LayerSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    contexts: Sequence[int] = CONTEXTS,
    mark: Callable[[], None] = lambda: None,
) -> float:
    """Returns the largest deviation, as a share of the largest expected value. `mark` is called on the way.
    Raises Mismatch, or what the backend raises."""
    steps, blocks = attention_steps(block_size, contexts)
    worst = 0.0
    for kind in _checked_kinds(layers, max(contexts)):
        both = [kind] if kind.source is None else [replace(kind, source=None), kind]
        storage, exact = (KVStorage(both, blocks, block_size, one, device) for one in (dtype, torch.float32))
        about = named(kind, dtype)
        backend, reference = backend_over(storage), TorchAttention(exact)
        random = torch.Generator().manual_seed(0)
        for plan in steps:
            backend.begin(plan)
            reference.begin(plan)
            for layer in range(len(both)):  # the second one reads what the first has stored
                query, key, value, sinks = random_inputs(kind, plan.token_count, dtype, device, random)
                got = backend.attend(layer, query, key, value, sinks)
                with exact_products():
                    want = reference.attend(layer, query.float(), key.float(), value.float(), sinks)
                worst = max(worst, compare(got, want, f"attention of {about}", TOLERANCE[dtype]))
            mark()
        for stored, right in zip(storage.parts(), exact.parts(), strict=True):
            if not torch.equal(stored.float(), right):
                raise Mismatch(f"what is stored of the keys and values of {about} is wrong")
    return worst


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Has torch multiply float32 as such: NVIDIA's images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, with which a
    process begins with TF32, whose products have 10 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def random_inputs(
    kind: LayerSpec,
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    random: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key, value and sinks, as views of one tensor: what a fused linear layer hands over."""
    widths = [kind.heads * kind.key_dim, kind.kv_heads * kind.key_dim, kind.kv_heads * kind.value_dim]
    fused = torch.randn(tokens, sum(widths), generator=random).to(dtype).to(device)
    query, key, value = torch.split(fused, widths, dim=1)
    sinks = torch.randn(kind.heads, generator=random).to(dtype).to(device) if kind.sinks else None
    return (
        query.view(tokens, kind.heads, kind.key_dim),
        key.view(tokens, kind.kv_heads, kind.key_dim),
        value.view(tokens, kind.kv_heads, kind.value_dim),
        sinks,
    )


def _checked_kinds(layers: Sequence[LayerSpec], longest: int) -> list[LayerSpec]:
    """Each kind; beside one whose window is at least as long as the longest context, which it never cuts, the
    same with a short one; and the first layer that reads another's keys and values."""
    kinds = kinds_of(layers)
    copies = [replace(kind, window=_SHORT_WINDOW) for kind in kinds if (kind.window or 0) >= longest]
    readers = [replace(layer, group=0, source=0) for layer in layers if layer.source is not None]
    return list(dict.fromkeys((*kinds, *copies, *readers[:1])))


def kinds_of(layers: Sequence[LayerSpec]) -> list[LayerSpec]:
    """One layer of each kind, in the first group, with keys and values of its own."""
    return list(dict.fromkeys(replace(layer, group=0, source=None) for layer in layers))


def named(kind: LayerSpec, dtype: torch.dtype) -> str:
    window = f", window {kind.window}" if kind.window else ""
    read = "" if kind.source is None else ", on keys and values of another layer"
    return (
        f"{kind.heads} heads ({kind.kv_heads} KV) of {kind.key_dim}{window}, {kv_name([kind], dtype)}{read}"
    )
