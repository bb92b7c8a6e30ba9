"""Keys and values in INT8: what the kernels store, to the last bit, and what they make of it, against plain
attention in float64 over what is stored. Run by test_kernels.py, as kernels.py is."""

from __future__ import annotations

import pytest
import torch
from support.engine.attention_step import DEVICE, INT8, Lens, Step, spec
from support.engine.planning import Segment, pack
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.gpu.attention import launches
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.kv_format import LEAST_HALF
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

LENS: Lens = [(0, 1), (37, 1), (0, 19), (18, 5)]


def bits(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8)


def extremes(heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Numbers of every size and place, halves of codes, equal ones, nearly equal ones, and none."""
    random = torch.Generator().manual_seed(dim)
    new = torch.randn(24, heads, dim, generator=random) + 3 * torch.randn(24, heads, 1, generator=random)
    new *= 10.0 ** torch.linspace(-4, 3, 24)[:, None, None]
    new[1] = 0.0
    new[2] = -2.5
    new[3] = torch.arange(dim) / 2 - 4
    new[4] = 127 - torch.arange(dim) % 255 + 0.5  # a scale of 1, and halves
    new[5] = torch.arange(dim) * LEAST_HALF / dim
    new[6, :, 0] = torch.finfo(dtype).max
    return new.to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_stored_is_that_of_pytorch_to_the_last_bit(dtype: torch.dtype) -> None:
    layer = spec(2, 2, 80, value_dim=24, **INT8)
    plan = pack([Segment(0, [0] * 24, 0, [3, 1])], 16)
    key, value = (extremes(2, dim, dtype) for dim in (80, 24))
    ours, theirs = (KVStorage([layer], 5, 16, dtype, DEVICE) for _ in range(2))
    backend, plain = TritonAttention(ours), TorchAttention(theirs)
    backend.begin(plan)
    [step] = backend._steps.values()
    out = torch.empty(24, 2, 24, dtype=dtype, device=DEVICE)
    launches.store(launches.LayerLaunch(ours, 0, step, out, None, out), key, value)
    plain.begin(plan)
    plain.attend(0, torch.zeros_like(key), key, value)
    for got, want in zip(ours.parts(), theirs.parts(), strict=True):
        assert torch.equal(bits(got), bits(want)), got.dtype
    assert all(part.any() for part in ours.parts())


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_none_in_its_row(broken: float) -> None:
    step = Step(spec(2, 2, 16, **INT8), [(20, 1), (20, 4)])
    key, value = step.new
    key[2, 0, 5] = value[2, 1, 7] = broken
    backend = TritonAttention(step.storage)
    backend.begin(step.plan)
    found = backend.attend(0, step.query, key, value)
    block, offset = divmod(int(step.plan.slot_mapping[0][2]), 16)
    key_scales, value_scales = (
        scales[0][block, :, offset]
        for scales in (step.storage.key_scales, step.storage.value_scales)
        if scales[0] is not None
    )
    assert key_scales.isfinite().all(-1).tolist() == [False, True]
    assert value_scales.isfinite().all(-1).tolist() == [True, False]
    assert torch.allclose(found[:1].double(), step.expected()[:1], atol=2e-6)
    assert found[2].isnan().all()


@pytest.mark.parametrize(
    "layer",
    [
        spec(4, 2, 16, **INT8),
        spec(6, 1, 80, value_dim=24, **INT8),
        spec(2, 2, 24, softcap=9.0, **INT8),
        spec(2, 1, 256, **INT8),
    ],
    ids=str,
)
def test_every_kind_of_layer(layer: LayerSpec) -> None:
    Step(layer, LENS).check(error=1e-5 if layer.softcap else None)


def test_small_values_in_float16() -> None:
    """Their scales times weights are less than what float16 is exact for."""
    step = Step(spec(2, 1, 32, **INT8), [(0, 40)], dtype=torch.float16)
    step.values = [values * 2e-4 for values in step.values]
    backend = TritonAttention(step.storage)
    backend.begin(step.plan)
    found, want = backend.attend(0, step.query, *step.new).double(), step.expected()
    assert (found - want).abs().max() <= 1e-3 * want.abs().max()


@pytest.mark.parametrize("block_size", [1, 12])
def test_block_sizes(block_size: int) -> None:
    """With one KV head, scales of an odd number of tokens lie in a block of 1."""
    Step(spec(2, 1, 16, **INT8), [(37, 1), (6, 5)], block_size).check()


def test_long_contexts_in_parts_and_a_beginning_that_rows_share() -> None:
    lens: Lens = [(600, 1), (530, 1), (3, 1), (1060, 16)]
    step = Step(spec(2, 1, 16, **INT8), lens, prefix_groups=[(32, (0, 1))])
    backend = TritonAttention(step.storage, programs=64)
    backend.begin(step.plan)
    [laid_out] = backend._steps.values()
    assert min(map(len, (laid_out.shared_parts, laid_out.decode_merges, laid_out.prefill_merges))) > 0
    step.check(backend, error=1e-5)


def chunked(whole: Step, plans: list[Plan]) -> tuple[Tensor, list[Tensor]]:
    """Answers of a row computed in these steps, and all that is stored then."""
    storage = KVStorage([whole.layer], whole.storage.blocks, 16, whole.dtype, DEVICE)
    backend, done, answers = TritonAttention(storage), 0, []
    for plan in plans:
        backend.begin(plan)
        own = slice(done, done + plan.token_count)
        answers.append(backend.attend(0, *(new[own] for new in (whole.query, *whole.new))))
        done = own.stop
    return torch.cat(answers), storage.parts()


def test_chunks_store_the_same_bits_and_answer_the_same() -> None:
    """Also of its own chunk, attention reads what is stored."""
    whole = Step(spec(4, 2, 24, **INT8), [(0, 40)])
    ways = []
    for chunks in ((40,), (23, 17), (1, 1, 37, 1)):
        starts = [sum(chunks[:number]) for number in range(len(chunks))]
        ways.append(
            [
                pack([Segment(0, [0] * count, start, whole.tables[0])], 16)
                for start, count in zip(starts, chunks, strict=True)
            ]
        )
    want, stored = chunked(whole, ways[0])
    assert torch.allclose(want.double(), whole.expected(), atol=2e-6)
    for way in ways[1:]:
        found, parts = chunked(whole, way)
        assert torch.allclose(found, want, atol=2e-6)
        assert all(torch.equal(bits(got), bits(part)) for got, part in zip(parts, stored, strict=True))
