"""Attention of prompts by torch's FlashAttention (torch.nn.attention.varlen), for the layers that it
computes: over the step's own keys and values where all prompts begin with the step, otherwise over those
gathered from the storage. Segments with so much in the cache that gathering takes longer are our kernel's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

if TYPE_CHECKING:  # it needs triton
    from millstream_worker.engine.runner.attention.triton.launches import LayerLaunch

Attend = Callable[..., object]  # its first argument is the tensor for the answer
MOST_CACHED = 4  # cached tokens for each new one of a segment whose keys are gathered
_LEAST_CAPABILITY = (8, 0)
_MOST_DIM = 256


def choose(storage: KVStorage) -> list[Attend | None]:
    """Torch's function for each layer whose prompts it can compute; None: our kernel does. Where it can, it
    is taken for the faster one, which no measurement has shown yet. It can where
    - this torch's function takes a scale and a window,
    - the GPU is of compute capability 8.0 or later,
    - keys and values are stored as float16 or bfloat16, of one size, which is up to 256 and a multiple of 8,
    - neither the layer nor another of its shape has a soft cap or sinks.
    """
    function = find() if capability(storage.device) >= _LEAST_CAPABILITY else None
    found = [_prepared(function, layer, storage.dtype) if function else None for layer in storage.layers]
    ours = {layer.shape for layer, attend in zip(storage.layers, found, strict=True) if attend is None}
    return [
        None if layer.shape in ours else attend for layer, attend in zip(storage.layers, found, strict=True)
    ]


def find() -> Attend | None:
    """Torch's function; None where this torch has none."""
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return None
    if "varlen_attn_out" in varlen.__all__:  # torch 2.11 does not have it
        return cast(Attend, varlen.varlen_attn_out)
    return _copied(varlen.varlen_attn)


def _copied(function: Callable[..., Any]) -> Attend:
    """One that makes its answer anew, as one that is given the tensor for it."""

    @wraps(function)  # with its signature
    def attend(out: Tensor, *given: Any, **options: Any) -> None:
        out.copy_(function(*given, **options))

    return attend


def capability(device: torch.device) -> tuple[int, int]:
    """Of CUDA; (0, 0) for other devices."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class FlashStep:
    """What the layers of one group share in a step with P segments that do not decode. One that is left to
    our kernel has no keys here: its answer is overwritten."""

    query_starts: Tensor  # [P + 1] int32, counted from the first of their tokens
    key_starts: Tensor  # [P + 1] int32
    blocks: Tensor  # [K] int64 of each key in the storage; [0]: the keys are the step's own
    offsets: Tensor  # [K] int64 in its block
    tokens: slice  # of the step that are theirs
    longest_query: int
    longest_keys: int


def taken(plan: Plan) -> NDArray[np.bool_]:
    """[P] which of the segments that do not decode FlashAttention computes."""
    lens = plan.query_lens[plan.decodes :]
    return plan.kv_lens[plan.decodes :] - lens <= MOST_CACHED * lens


def arrays(plan: Plan, group: int, block_size: int) -> tuple[NDArray[Any], ...]:
    """The vectors of a `FlashStep`, in the order of its fields."""
    lens, ends = plan.query_lens[plan.decodes :], plan.kv_lens[plan.decodes :]
    keys = np.where(taken(plan), ends, 0)
    starts = [np.concatenate(([0], counts.cumsum())).astype(np.int32) for counts in (lens, keys)]
    if np.array_equal(keys, lens):
        return *starts, np.empty(0, np.int64), np.empty(0, np.int64)
    places = np.arange(starts[1][-1]) - np.repeat(starts[1][:-1], keys)
    rows = np.repeat(np.arange(plan.decodes, len(plan.query_lens)), keys)
    blocks = plan.block_tables[group][rows, places // block_size]
    return *starts, blocks.astype(np.int64), places % block_size


def flash_step(plan: Plan, vectors: Sequence[Tensor]) -> FlashStep:
    """`vectors`: what `arrays` made, on the device."""
    query_starts, key_starts, blocks, offsets = vectors
    return FlashStep(
        query_starts,
        key_starts,
        blocks,
        offsets,
        tokens=slice(int(plan.query_starts[plan.decodes]), plan.token_count),
        longest_query=int(plan.query_lens[plan.decodes :].max()),
        longest_keys=int(plan.kv_lens[plan.decodes :][taken(plan)].max()),
    )


def prefill(attend: Attend, step: FlashStep, launch: LayerLaunch, key: Tensor, value: Tensor) -> None:
    """Writes the answers of all segments behind the decoding ones. `key` and `value`: the step's own."""
    if len(step.blocks):
        key, value = (cache[step.blocks, :, step.offsets] for cache in launch.cache[:2])
    else:
        key, value = (own[step.tokens].to(launch.query.dtype) for own in (key, value))
    attend(
        launch.out[step.tokens],
        launch.query[step.tokens],
        key,
        value,
        step.query_starts,
        step.key_starts,
        step.longest_query,
        step.longest_keys,
    )


def _prepared(function: Attend, spec: LayerSpec, dtype: torch.dtype) -> Attend | None:
    """With the options of a layer; None: it cannot compute that."""
    window = -1 if spec.window is None else spec.window - 1
    options: dict[str, Any] = {"scale": spec.scale, "window_size": (window, 0)}
    known = inspect.signature(function).parameters
    if "enable_gqa" in known:  # torch 2.11 takes grouped heads as they are
        options["enable_gqa"] = spec.heads != spec.kv_heads
    can = _computes(spec, dtype) and options.keys() <= known.keys()
    return partial(function, **options) if can else None


def _computes(spec: LayerSpec, dtype: torch.dtype) -> bool:
    return (
        spec.kv_format is KVFormat.AS_COMPUTED
        and spec.softcap is None
        and not spec.sinks
        and spec.key_dim == spec.value_dim
        and spec.key_dim <= _MOST_DIM
        and spec.key_dim % 8 == 0
        and dtype in (torch.float16, torch.bfloat16)
    )
