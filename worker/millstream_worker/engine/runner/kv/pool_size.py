"""Computes how many KV blocks fit: the setting `kv_memory` against what is free once the weights are loaded
and the largest step has what it needs besides."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.frames import LoadStep
from millstream_worker.engine.protocol.sizes import share_of, size_bytes
from millstream_worker.engine.runner.device.cgroup import ControlGroups
from millstream_worker.engine.runner.linear.fused import FusedLinear
from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedEmbedding, QuantizedLinear
from millstream_worker.engine.runner.sampling.sampler import PIECE_ELEMENTS

GIB = 2**30

_AUTO_CPU_SHARE, _AUTO_CPU_MOST = 0.4, 4 * GIB  # the memory is not ours alone
_AUTO_CUDA_SHARE = 0.9  # the rest is for what no step shows: kernels that are loaded later, other processes
# What a step holds at once, at the most. Measured on the CPU (a slice of a 135M model, 64 rows with all kinds
# of sampling, chunks of 2,048 of 12,000 tokens): 195 MiB in float32, 372 MiB in bfloat16.
_WIDE_TENSORS = 6  # per token, each as wide as the model's widest layer: gate, up, their product, residuals
# Per row and token id: logits, what they were before a grammar, and what was seen, twice while there come to
# be more rows.
_LOGIT_BYTES = 20
_SAMPLE_BYTES = 64  # the same of those sampled at a time: changed, weights, logprobs with sort keys
_ATTENTION_BYTES = 160 << 20  # of torch's: the scores of a slice, and the keys or values of a long row
_WORKSPACE_BYTES = 128 << 20  # of torch's libraries: packed weights, and what their products are summed in


class BadKVMemory(ValueError):
    """`kv_memory` is no size, or holds no cache. The message names the setting, its value and the remedy."""


def pool_bytes(
    kv_memory: str,
    bytes_per_block: int,
    device: torch.device,
    *,
    free: int,
    aside: int = 0,
) -> int:
    """Returns the pool's bytes, of at least one block. Call it when the weights are on the device, in their
    final layout.

    `kv_memory`: "auto", bytes ("2GiB", "500MB", "1073741824"), or a share of the free memory ("0.6", "60%").
    Of the `free` bytes, `aside` are never the pool's, as steps need them: a pool that took them would end the
    engine in the middle of its first long prompt. Raises BadKVMemory.
    """
    free = max(0, free - aside)
    beside = f" beside the {size_name(aside)} that a step may need" if aside else ""
    wanted = _wanted(kv_memory, device, free)
    if wanted > free:
        raise BadKVMemory(
            f"kv_memory {kv_memory!r}: only {size_name(free)} are free on {device}{beside}; "
            "give less, or a share (0.6)"
        )
    if wanted < bytes_per_block:
        raise BadKVMemory(
            f"kv_memory {kv_memory!r}: {size_name(wanted)} hold not even one block of "
            f"{size_name(bytes_per_block)}, with {size_name(free)} free on {device}{beside}; "
            "give more, or lower max_step_tokens or max_rows"
        )
    return wanted


def step_bytes(model: PreTrainedModel, *, vocab_size: int, tokens: int, rows: int) -> int:
    """Returns the bytes that a step of so many new tokens, and so many rows that sample one, takes beside
    weights and pool: activations, logits, sampling and attention. It estimates from above, from the shapes of
    the weights; on CUDA `profiling.step_needs` measures instead.
    """
    itemsize: int = model.dtype.itemsize
    activations = tokens * _widest(model) * _WIDE_TENSORS * itemsize
    elements = rows * vocab_size
    at_once = min(elements, max(PIECE_ELEMENTS[model.device.type], vocab_size))
    sampling = elements * _LOGIT_BYTES + at_once * _SAMPLE_BYTES
    return activations + sampling + _ATTENTION_BYTES + _WORKSPACE_BYTES


def _widest(model: PreTrainedModel) -> int:
    """Returns the numbers per token in the output or input of the widest layer, the logits excepted; of fused
    layers each counts for itself. Each token goes through several experts of a mixture at once."""
    fused = [module for module in model.modules() if isinstance(module, FusedLinear)]
    aside = {model.get_output_embeddings(), *(layer.joint for layer in fused)}
    modules = [
        one
        for one in model.modules()
        if not isinstance(one, (nn.Embedding, QuantizedEmbedding)) and one not in aside
    ]
    sizes = [size for module in modules for size in _sizes(module)]
    experts: int = getattr(model.config, "num_experts_per_tok", None) or 1
    return max([*sizes, *(layer.out_features for layer in fused)], default=1) * experts


def _sizes(module: nn.Module) -> list[int]:
    """Returns the numbers per token that a module's own weights read or make."""
    if isinstance(module, (PanelLinear, QuantizedLinear)):
        return [module.in_features, module.out_features]
    return [
        size for weight in module.parameters(recurse=False) if weight.ndim > 1 for size in weight.shape[-2:]
    ]


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that can still be taken: on the CPU within the limits of the control groups."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        holes = torch.cuda.memory_stats(device).get("inactive_split_bytes.all.current", 0)  # between tensors
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused - holes)
    left = ControlGroups().memory_left()
    available = available_bytes()
    return available if left is None else min(available, left)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Returns the machine's memory that can be taken without swapping."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # not Linux: half is a guess


def capacity_line(info: EngineInfo) -> str:
    """Returns the log line at start: what the pool holds, in tokens and in rows."""
    tokens, per_token = info.token_capacity, info.kv_bytes_per_token
    rows = [info.context_length, *(length for length in (1024, 256) if length < info.context_length)]
    lengths = ", ".join(f"{tokens // length:,} of {length:,}" for length in rows)
    scales = ", scales included" if info.kv_format != info.dtype else ""
    return (
        f"KV cache {size_name(tokens * per_token)}: {info.blocks:,} blocks of {info.block_size} = {tokens:,} "
        f"tokens of {per_token:,} bytes (2 x {info.kv_format} x layers x KV heads x head size{scales}); rows "
        f"that fit, by tokens each: {lengths}; at most {info.max_rows} at once"
    )


def room_line(info: EngineInfo) -> str:
    """Returns the step in which the KV pool is allocated, with its size."""
    size = info.token_capacity * info.kv_bytes_per_token / GIB
    return f"{LoadStep.ROOM} about {info.token_capacity:,} tokens ({size:,.1f} GiB)"


def _wanted(kv_memory: str, device: torch.device, free: int) -> int:
    text = kv_memory.strip().lower()
    if text == "auto":
        if device.type == "cuda":
            return int(free * _AUTO_CUDA_SHARE)
        return min(int(free * _AUTO_CPU_SHARE), _AUTO_CPU_MOST)
    share = share_of(text)
    if share is not None:
        if not 0 < share <= 1:
            raise BadKVMemory(f"kv_memory {kv_memory!r}: a share is above 0 and at most 1 (100%)")
        return int(free * share)
    size = size_bytes(text)
    if size is None:
        raise BadKVMemory(
            f'kv_memory {kv_memory!r}: give "auto", a size (2GiB, 500MB), or a share of the free memory (0.6)'
        )
    return size


def size_name(count: int) -> str:
    """Returns bytes for people."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"
