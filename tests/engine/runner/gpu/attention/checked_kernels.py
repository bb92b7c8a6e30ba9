"""The check that a worker makes at start, of the Triton kernels. Run by test_kernels.py, as kernels.py is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engine.attention_step import DEVICE

from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_check import check_attention
from millstream_worker.engine.runner.self_check.deviation import Mismatch

LAYERS = (
    LayerSpec(4, 2, 32, 32, scale=0.2),
    LayerSpec(2, 1, 64, 32, scale=0.2, window=20, softcap=4.0, sinks=True),
)

INT8 = LayerSpec(2, 1, 32, 16, scale=0.2, kv_format=KVFormat.INT8)


def check(layers: tuple[LayerSpec, ...], longest: int) -> float:
    return check_attention(TritonAttention, layers, torch.float32, DEVICE, 16, (1, 16, 17, longest))


@pytest.mark.parametrize(("layer", "longest"), [(LAYERS[0], 40), (LAYERS[1], 290)])
def test_they_are_right(layer: LayerSpec, longest: int) -> None:
    assert check((layer,), longest) < 1e-5


def test_they_are_right_in_int8_and_store_the_right_codes() -> None:
    assert check((INT8,), longest=40) < 1e-5


def test_a_wrong_scale_is_found() -> None:
    def wrong(storage: KVStorage) -> TritonAttention:
        storage.layers = tuple(replace(layer, scale=0.21) for layer in storage.layers)
        return TritonAttention(storage)

    with pytest.raises(Mismatch, match="attention of 4 heads"):
        check_attention(wrong, LAYERS[:1], torch.float32, DEVICE, 16, (1, 16, 17, 40))
