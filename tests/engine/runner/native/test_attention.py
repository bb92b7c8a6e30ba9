"""The compiled attention against its definition in float64, over a storage that holds no numbers but those
that were stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.paged_rows import LAYERS, RAGGED, PagedRows
from support.engine.planning import Segment, pack

from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.self_check.attention_check import check_attention
from millstream_worker.engine.runner.self_check.attention_steps import SHORT_CONTEXTS

Backend = Callable[[KVStorage], NativeAttention]
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_ragged_steps(name: str, dtype: torch.dtype, native: Backend) -> None:
    PagedRows(LAYERS[name], 5, native, dtype=dtype).check(*RAGGED)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 64, 80, 130])
def test_codes_are_stored_as_plain_attention_stores_them(
    dim: int, dtype: torch.dtype, native: Backend
) -> None:
    layer = LayerSpec(6, 2, dim, dim, scale=dim**-0.5, kv_format=KVFormat.INT8)
    check_attention(native, [layer], dtype, torch.device("cpu"), 16, SHORT_CONTEXTS)


@pytest.mark.parametrize("threads", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["grouped", "grouped int8", "narrow values"])
def test_several_threads(name: str, threads: int, native: Backend) -> None:
    """Rows are so long that each step is worth several."""
    torch.set_num_threads(threads)
    PagedRows(LAYERS[name], 5, native, tokens=3200).check([900, 1, 1000, 0, 0], *RAGGED)


@pytest.mark.parametrize("keys", [99, 1500])
def test_torchs_threads_live_on(keys: int, native: Backend) -> None:
    """Whether a step is worth one or several. A team of fewer would end the rest of them, for torch to start
    others, twice a layer."""
    torch.set_num_threads(5)
    rows = PagedRows(LAYERS["grouped"], 2, native)
    numbers = torch.zeros(1_000_000)
    rows.step([keys, 0])
    numbers.exp_()
    before = set(os.listdir("/proc/self/task"))
    for _ in range(3):
        rows.step([1, 0])
        numbers.exp_()
    assert set(os.listdir("/proc/self/task")) <= before


@pytest.mark.parametrize("name", ["grouped", "wide values int8", "narrow values"])
@pytest.mark.parametrize("window", [None, 600])
def test_a_long_context_is_put_together_from_its_parts(
    name: str, window: int | None, native: Backend
) -> None:
    layer = replace(LAYERS[name], window=window)
    PagedRows(layer, 2, native, tokens=2400).check([511, 1022], [1, 1], [1, 1], [0, 1], [1, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["grouped", "one key head", "window", "narrow values", "odd heads", "odd heads int8"]
)
@pytest.mark.parametrize("block_size", [8, 5])
def test_prefix_groups_read_their_beginning_together(
    name: str, dtype: torch.dtype, block_size: int, native: Backend
) -> None:
    rows = PagedRows(LAYERS[name], 12, native, block_size=block_size, dtype=dtype, tokens=2400)
    rows.step([560, 90, 7] + [0] * 9)
    for row in (3, 4, 5, 6, 7):
        rows.begin_like(row, 0, blocks=70)
    for row in (8, 9):
        rows.begin_like(row, 1, blocks=4)
    prefix_groups = [(70, [0, 3, 4, 5, 6, 7]), (4, [1, 8, 9])]
    for new in ([1] * 10 + [30, 1], [1] * 12, [1, 1, 20, *[1] * 9]):
        rows.check_step(new, prefix_groups)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_on_processors_with_less(name: str, dtype: torch.dtype, plain_library: Library) -> None:
    PagedRows(LAYERS[name], 5, partial(NativeAttention, library=plain_library), dtype=dtype).check(
        *RAGGED[:3]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_bfloat16_is_multiplied_in_every_way(name: str, bfloat16_library: Library) -> None:
    """Each processor has its fastest way; tiles are emulated."""
    backend = partial(NativeAttention, library=bfloat16_library)
    PagedRows(LAYERS[name], 5, backend, dtype=torch.bfloat16).check(*RAGGED)


@settings(max_examples=30)
@given(
    new=st.lists(st.tuples(*[st.sampled_from([0, 1, 1, 2, 9, 64, 65])] * 3), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 8),
    dims=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    block_size=st.integers(1, 32),
    window=st.none() | st.integers(1, 100),
    softcap=st.none() | st.floats(0.5, 50),
    sinks=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    kv_format=st.sampled_from(KVFormat),
)  # fmt: skip
def test_any_layer_and_any_steps(
    library: Library, new: list[tuple[int, ...]], kv_heads: int, group: int, dims: tuple[int, int],
    block_size: int, window: int | None, softcap: float | None, sinks: bool, dtype: torch.dtype,
    kv_format: KVFormat,
) -> None:  # fmt: skip
    layer = LayerSpec(
        kv_heads * group, kv_heads, *dims, scale=0.2, window=window, softcap=softcap, sinks=sinks,
        kv_format=kv_format,
    )  # fmt: skip
    rows = PagedRows(layer, 3, partial(NativeAttention, library=library), block_size=block_size, dtype=dtype)
    rows.check(*filter(any, new))


@pytest.mark.parametrize("name", ["grouped", "grouped int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_row_spoils_no_other_and_its_blocks_are_reused(
    name: str, bad: float, native: Backend
) -> None:
    rows = PagedRows(LAYERS[name], 3, native)
    rows.step([20, 20, 20])
    rows.qkv[1][1][:] = bad
    scales = rows.storage.key_scales[0]
    (rows.storage.keys[0] if scales is None else scales)[rows.blocks[1]] = bad
    computed, expected = rows.step([1, 1, 1])
    assert not computed[1].isfinite().any()
    torch.testing.assert_close(computed[[0, 2]].double(), expected[[0, 2]], atol=3e-6, rtol=3e-6)

    rows.free += rows.blocks[1]
    rows.blocks[1], rows.qkv[1] = [], [part[:0] for part in rows.qkv[1]]
    rows.check([1, 5, 1], [1, 1, 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(6, 2, 64), (2, 2, 64), (2, 2, 80), (7, 1, 48), (5, 1, 32), (4, 1, 33)])
@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_row_is_computed_the_same_alone_and_among_others(
    kv_format: KVFormat, heads: tuple[int, int, int], dtype: torch.dtype, native: Backend
) -> None:
    """To the last bit, whatever the batch and the chunks."""
    layer = LayerSpec(*heads, heads[2], scale=0.2, kv_format=kv_format)
    together = PagedRows(layer, 3, native, dtype=dtype, tokens=3200)
    first, _ = together.step([700, 33, 300])
    then, _ = together.step([1, 1, 40])

    alone = PagedRows(layer, 1, native, dtype=dtype)
    query, key, value = together.qkv[0]
    answers = []
    for start, end in ((0, 350), (350, 690), (690, 700), (700, 701)):
        alone.qkv[0] = [part[:start] for part in (query, key, value)]
        answers.append(given_step(alone, query[start:end], key[start:end], value[start:end]))
    assert torch.equal(torch.cat(answers[:3]), first[:700])
    assert torch.equal(answers[3][0], then[0])


def given_step(rows: PagedRows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The step of a single row with these tokens instead of random ones."""
    start, count = len(rows.qkv[0][0]), len(query)
    while len(rows.blocks[0]) * rows.block_size < start + count:
        rows.blocks[0].append(rows.free.pop())
    rows.attention.begin(pack([Segment(0, [0] * count, start, rows.blocks[0])], rows.block_size))
    return rows.attention.attend(0, query, key, value)
