"""The kernels against plain attention in float64, on random data. Run by test_kernels.py in a process of its
own, where Triton interprets them on the CPU; on a machine with a GPU they are compiled and run there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engine.attention_step import DEVICE, DTYPES, RAGGED, Lens, Step, spec

from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_check import check_attention
from millstream_worker.engine.runner.self_check.deviation import Mismatch

WINDOWS = (1, 16, 17, 193, 1000)  # in wide ones some keys are seen by all queries of a tile


@pytest.mark.parametrize(
    "layer",
    [
        *(spec(*heads) for heads in ((2, 2), (4, 2), (7, 1), (24, 1))),
        *(spec(2, 1, dim) for dim in (8, 64, 80, 112, 192, 256, 512)),
        *(spec(window=window) for window in WINDOWS),
        *(spec(softcap=softcap) for softcap in (0.5, 30.0)),
        spec(4, 2, 96, value_dim=64),
        spec(sinks=True),
        spec(6, 2, 80, window=9, softcap=20.0, sinks=True),
    ],
    ids=str,
)
def test_every_kind_of_layer(layer: LayerSpec) -> None:
    lens = RAGGED if layer.window is None else [*RAGGED, (100, 40), (150, 70), (200, 1)]
    Step(layer, lens).check(error=1e-5 if layer.softcap else None)  # tanh by way of exp


@pytest.mark.parametrize("block_size", [1, 8, 12, 32, 100])
def test_block_sizes(block_size: int) -> None:
    Step(spec(), RAGGED, block_size).check()


@pytest.mark.parametrize(
    "lens", [[(0, 1)], [(63, 1)], [(64, 1)], [(0, 64)], [(0, 65)], [(63, 2)], [(64, 2)], [(1, 130)]]
)
def test_edges_of_tiles(lens: Lens) -> None:
    Step(spec(), lens).check()
    Step(spec(4, 4), lens, dtype=torch.float16).check()  # tiles of 128 tokens


@pytest.mark.parametrize("dtype", DTYPES)
def test_precisions(dtype: torch.dtype) -> None:
    Step(spec(8, 2, 128), [*RAGGED, (300, 1), (200, 33)], dtype=dtype).check()


@pytest.mark.parametrize("layer", [spec(), spec(sinks=True), spec(window=600), spec(4, 1, 80, softcap=9.0)])
def test_long_contexts_are_split_and_put_together(layer: LayerSpec) -> None:
    step = Step(layer, [(1500, 1), (3, 1), (0, 1), (511, 1), (900, 1)])
    backend = TritonAttention(step.storage, programs=64)  # as if on a device with many processors
    backend.begin(step.plan)
    assert len(next(iter(backend._steps.values())).decode_merges)
    step.check(backend, error=1e-5)


LONG: Lens = [(1100, 1), (3, 1), (1100, 16), (600, 2), (0, 7)]


@pytest.mark.parametrize(
    "layer",
    [
        spec(dim=16),
        spec(6, 2, 80, sinks=True),
        spec(4, 2, 24, window=1070, sinks=True),
        spec(8, 1, 16, softcap=9.0, value_dim=40),
    ],
)
def test_a_long_context_is_read_in_parts_for_few_new_tokens(layer: LayerSpec) -> None:
    step = Step(layer, LONG)
    backend = TritonAttention(step.storage, programs=64)
    backend.begin(step.plan)
    assert len(next(iter(backend._steps.values())).prefill_merges)
    step.check(backend, error=1e-5)


def test_more_partial_answers_than_are_merged_at_once() -> None:
    step = Step(spec(8, 1, 16), [(6700, 1), (5, 1)])
    backend = TritonAttention(step.storage, programs=64)
    step.check(backend, error=1e-5)
    assert next(iter(backend._steps.values())).decode_merges.tolist() == [[0, 0, 26]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_precisions_of_partial_answers(dtype: torch.dtype) -> None:
    step = Step(spec(4, 2, 128, sinks=True), [(1100, 1), (3, 1), (1060, 20)], dtype=dtype)
    step.check(TritonAttention(step.storage, programs=64))


def test_tensors_that_are_views_of_a_fused_projection() -> None:
    step = Step(spec(4, 2), RAGGED)
    key, value = step.new
    fused = torch.cat([t.flatten(1) for t in (step.query, key, value)], 1)
    query, key, value = (part.unflatten(1, (-1, 64)) for part in fused.split([4 * 64, 2 * 64, 2 * 64], 1))
    backend = TritonAttention(step.storage)
    backend.begin(step.plan)
    found = backend.attend(0, query, key, value)

    assert not query.is_contiguous()
    assert torch.allclose(found.double(), step.expected(), atol=2e-6)


def test_the_storage_holds_only_what_was_written() -> None:
    step = Step(spec(), RAGGED)
    before = [step.storage.keys[0].clone(), step.storage.values[0].clone()]
    step.check()

    slots = torch.from_numpy(step.plan.slot_mapping[0])
    for cache, old, new in zip((step.storage.keys[0], step.storage.values[0]), before, step.new, strict=True):
        old[slots // 16, :, slots % 16] = new
        assert torch.equal(cache.nan_to_num(), old.nan_to_num())


def test_layers_of_several_kinds_equal_the_plain_backend_s() -> None:
    layers = [spec(), spec(window=5), spec(6, 3, 80, sinks=True)]
    steps = [Step(layer, RAGGED) for layer in layers]
    answers = []
    for kind in (TritonAttention, TorchAttention):
        storage = KVStorage(layers, steps[0].storage.blocks, 16, torch.float32, DEVICE)
        for layer, step in enumerate(steps):
            storage.keys[layer].copy_(step.storage.keys[0].nan_to_num(9.0))
            storage.values[layer].copy_(step.storage.values[0].nan_to_num(9.0))
        backend = kind(storage)
        backend.begin(steps[0].plan)
        answers.append([backend.attend(i, step.query, *step.new, step.sinks) for i, step in enumerate(steps)])

    for ours, plain in zip(*answers, strict=True):
        assert torch.allclose(ours, plain, atol=3e-6)


def test_a_padding_token_is_not_stored_and_gets_zeros() -> None:
    """As a compiled model pads a step of one token; behind the step's slots lies another's memory."""
    step = Step(spec(6, 2, 24), [(5, 1)])
    backend = TritonAttention(step.storage, 1)
    backend.begin(step.plan)
    [(shape, held)] = backend._steps.items()
    slots = torch.cat([held.slots, held.slots + 1])
    backend._steps[shape] = replace(held, slots=slots[:1])
    query, key, value = (torch.cat([new, torch.full_like(new, torch.nan)]) for new in (step.query, *step.new))

    torch.use_deterministic_algorithms(True)  # what is new holds NaN then
    try:
        found = backend.attend(0, query, key, value)
    finally:
        torch.use_deterministic_algorithms(False)

    assert torch.allclose(found[:1].double(), step.expected(), atol=2e-6)
    assert not found[1].any()
    block, offset = divmod(int(slots[1]), step.block_size)
    assert step.storage.keys[0][block, :, offset].isnan().all(), "as Step has left it"


# --- the check that a worker makes at start

CHECKED = (
    LayerSpec(4, 2, 32, 32, scale=0.2),
    LayerSpec(2, 1, 64, 32, scale=0.2, window=20, softcap=4.0, sinks=True),
    LayerSpec(2, 1, 32, 16, scale=0.2, kv_format=KVFormat.INT8),
)


@pytest.mark.parametrize(("layer", "longest"), list(zip(CHECKED, (40, 290, 40), strict=True)))
def test_the_check_finds_them_right(layer: LayerSpec, longest: int) -> None:
    """And in INT8 that they store the right codes."""
    contexts = (1, 16, 17, longest)
    assert check_attention(TritonAttention, (layer,), torch.float32, DEVICE, 16, contexts) < 1e-5


@pytest.mark.parametrize("own", CHECKED[1:])
def test_the_check_finds_right_what_another_layer_has_stored(own: LayerSpec) -> None:
    layers = (own, replace(own, source=0))
    assert check_attention(TritonAttention, layers, torch.float32, DEVICE, 16, (1, 16, 17, 40)) < 1e-5


def test_the_check_finds_a_wrong_scale() -> None:
    def wrong(storage: KVStorage) -> TritonAttention:
        storage.layers = tuple(replace(layer, scale=0.21) for layer in storage.layers)
        return TritonAttention(storage)

    with pytest.raises(Mismatch, match="attention of 4 heads"):
        check_attention(wrong, CHECKED[:1], torch.float32, DEVICE, 16, (1, 16, 17, 40))
