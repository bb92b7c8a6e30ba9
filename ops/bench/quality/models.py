"""Models as what gives logits of a window of tokens: in float32, without a cache or over one of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import packed_plan
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.linear.replace import replace_linear_layers
from millstream_worker.engine.runner.model.load import connect, load_model

# Of a window's last tokens, as many as asked for, each of which predicts the next: [count, vocabulary].
Logits = Callable[[Tensor, int], Tensor]
_BLOCK = 16
_CPU = torch.device("cpu")


def without_cache(folder: str, weights: str) -> Logits:
    """A model in float32 with transformers' own attention; with weights "fp8" in bfloat16, as on a GPU, and
    multiplied by torch on the CPU."""
    if weights == "fp8":
        loaded = load_model(
            folder, dtype=torch.bfloat16, device=_CPU, attention="torch", weights="dequantized"
        )
        model = loaded.model
        replace_linear_layers(
            model, None, weights, model.get_input_embeddings(), model.get_output_embeddings()
        )
    else:
        loaded = load_model(folder, dtype=torch.float32, device=_CPU, weights=weights)
    loaded.model.set_attn_implementation("sdpa")
    return partial(_logits, loaded.model)


def cached(folder: str, kv_dtype: str, most_tokens: int) -> Logits:
    """A model in float32 with our attention over a KV cache, for windows of at most so many tokens."""
    loaded = load_model(folder, dtype=torch.float32, device=_CPU, weights="dequantized", kv_dtype=kv_dtype)
    blocks = -(-most_tokens // _BLOCK)
    storage = KVStorage(loaded.layer_specs, blocks, _BLOCK, torch.float32, _CPU)
    backend = loaded.attend_over(storage)
    connect(loaded, backend, lambda: None)
    groups = 1 + max(layer.group for layer in loaded.layer_specs)
    table = np.arange(blocks, dtype=np.int32)[None]

    def logits(window: Tensor, count: int) -> Tensor:
        plan = packed_plan([len(window)], [len(window)], table, _BLOCK)
        backend.begin(
            replace(plan, block_tables=plan.block_tables * groups, slot_mapping=plan.slot_mapping * groups)
        )
        return _logits(loaded.model, window, count)

    return logits


@torch.inference_mode()
def _logits(model: torch.nn.Module, window: Tensor, count: int) -> Tensor:
    logits: Tensor = model(input_ids=window[None], use_cache=False, logits_to_keep=count).logits[0]
    return logits.float()
