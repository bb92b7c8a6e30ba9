"""Who reads which keys: each token its own, once, in parts of which there are enough and not too many."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support.engine.planning import sharing

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.gpu.attention.device_step import WIDTHS
from millstream_worker.engine.runner.gpu.attention.key_parts import STEP, cut
from millstream_worker.engine.runner.gpu.attention.step_layout import StepLayout
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

H200 = 528  # programs: four for each of 132 processors
LLAMA = LayerSpec(32, 8, 128, 128, 0.1)
LAYERS = [
    LLAMA,
    LayerSpec(64, 8, 64, 64, 0.1, window=128),
    LayerSpec(16, 8, 256, 256, 0.1, window=4096),
    LayerSpec(32, 32, 80, 80, 0.1),
    LayerSpec(8, 1, 64, 64, 0.1),
    LayerSpec(70, 1, 64, 64, 0.1),
]


def layout(layer: LayerSpec = LLAMA, programs: int = H200) -> StepLayout:
    return StepLayout(layer, 2, programs)


def plan_of(lens: list[tuple[int, int]]) -> Plan:
    """By keys cached and new tokens; no block is looked at."""
    cached, new = np.array(lens, np.int32).T
    return packed_plan(new, cached + new, np.zeros((len(lens), int((cached + new).max())), np.int32), 1)


def random_plan(random: np.random.Generator, *, chunks: bool) -> Plan:
    """Rows short and long, some in prefix groups of rows that lie one behind the other."""
    rows = int(random.integers(1, 40))
    lens = [(int(2 ** random.uniform(0, 14)), 1) for _ in range(rows)]
    groups, begin = [], 0
    for size in random.integers(2, 20, int(random.integers(0, 4))):
        members = range(begin, min(begin + int(size), rows))
        if len(members) > 1:
            groups.append((int(random.integers(1, min(lens[row][0] for row in members) + 1)), members))
        begin += int(size)
    if chunks:
        lens += [(int(2 ** random.uniform(0, 14)), int(2 ** random.uniform(1, 9))) for _ in range(3)]
    return sharing(plan_of(lens), groups)


def read(step: StepLayout, plan: Plan) -> tuple[Counter[tuple[int, int]], Counter[int]]:
    """How often each key is read for each token, and how often each partial is written."""
    vectors, _ = step.arrays(plan)
    keys: Counter[tuple[int, int]] = Counter()
    partials: Counter[int] = Counter()
    for row, begin, end, partial in vectors["decode_parts"].tolist():
        keys.update((row, place) for place in range(begin, end))
        partials[partial] += 1
    for first, count, begin, end, number in vectors["shared_parts"].tolist():
        for row in vectors["members"][first : first + count].tolist():
            keys.update((row, place) for place in range(begin, end))
            partials[int(vectors["member_partials"][row]) + number] += 1
    return keys, partials


@pytest.mark.parametrize("layer", LAYERS)
def test_each_row_reads_each_of_its_keys_once(layer: LayerSpec) -> None:
    random = np.random.default_rng(0)
    for programs in (1, 20, H200):
        plan, step = random_plan(random, chunks=False), layout(layer, programs)
        keys, partials = read(step, plan)
        vectors, numbers = step.arrays(plan)
        window = layer.window or 10**6
        lens = plan.kv_lens.tolist()
        assert keys == Counter(
            (row, place) for row, end in enumerate(lens) for place in range(max(0, end - window), end)
        )
        merges = vectors["decode_merges"].tolist()
        merged = [first + number for _, first, count in merges for number in range(count)]
        assert sorted(merged) == list(range(numbers["decode_partials"]))
        alone = len(lens) - len(merges)
        assert partials == Counter(merged) + Counter({-1: alone})
        if window < 10**6:
            assert not len(vectors["shared_parts"])


@pytest.mark.parametrize("layer", LAYERS)
def test_each_tile_reads_the_keys_that_its_tokens_see(layer: LayerSpec) -> None:
    random, window = np.random.default_rng(1), layer.window or 10**6
    for programs in (1, 20, H200):
        plan, step = random_plan(random, chunks=True), layout(layer, programs)
        vectors, numbers = step.arrays(plan)
        tiles: dict[tuple[int, int], list[list[int]]] = {}
        for segment, first, *part in sorted(vectors["prefill_parts"].tolist()):
            tiles.setdefault((segment, first), []).append(part)
        written: Counter[int] = Counter()
        seen: Counter[tuple[int, int]] = Counter()  # segment, token
        merges = {token: (first, count) for token, first, count in vectors["prefill_merges"].tolist()}
        for (segment, first), parts in tiles.items():
            rows = layer.heads // layer.kv_heads
            end = min(first + max(1, (128 if layer.key_dim < 256 else 64) // rows), plan.query_lens[segment])
            cached = plan.kv_lens[segment] - plan.query_lens[segment]
            seen.update((segment, token) for token in range(first, end))
            parts.sort()
            assert parts[0][0] == max(0, cached + first + 1 - window)
            assert parts[-1][1] == cached + end
            assert all(one[1] == other[0] for one, other in pairwise(parts))
            for number, (_, _, partial, apart) in enumerate(parts):
                if len(parts) == 1:
                    assert partial == -1
                    continue
                for token in range(first, end):
                    mine = partial + (token - first) * apart
                    written[mine] += 1
                    packed = int(plan.query_starts[segment]) + token
                    assert merges[packed] == (mine - number, len(parts))
        assert written == Counter(range(numbers["prefill_partials"]))
        chunks = range(plan.decodes, len(plan.query_lens))
        assert seen == Counter((one, token) for one in chunks for token in range(plan.query_lens[one]))


def test_the_parts_that_see_most_keys_come_first() -> None:
    parts = layout().arrays(plan_of([(5, 1), (0, 80), (100, 16), (9000, 40)]))[0]["prefill_parts"]
    lens = parts[:, 3] - parts[:, 2]
    assert (np.diff(lens) <= 0).all()
    assert parts[-1, :2].tolist() == [1, 0], "the first tokens of the first prompt see least"


@pytest.mark.parametrize(
    ("lens", "parts"),
    [
        ([300] * 256, [1] * 256),
        ([4000] * 72, [1] * 72),
        ([4000] * 16, [4] * 16),  # 512 programs
        ([8192], [32]),
        ([511], [1]),
        ([512], [2]),
        ([300] * 255 + [30_000], [1] * 255 + [18]),
    ],
)
def test_rows_are_cut_as_finely_as_the_device_has_room(lens: list[int], parts: list[int]) -> None:
    ends = np.array(lens)
    found = cut(np.zeros_like(ends), ends, layout().row_programs, 256)
    assert found.counts.tolist() == parts
    longest, shortest = (found.ends - found.begins).max(), (found.ends - found.begins).min()
    assert longest - shortest <= STEP or 1 in parts


@pytest.mark.parametrize(
    ("chunk", "parts"),
    [((32_768, 16), 32), ((4096, 5), 8), ((900, 16), 1), ((0, 512), 16), ((0, 8192), 256)],
)
def test_few_new_tokens_after_many_are_read_by_many_programs(chunk: tuple[int, int], parts: int) -> None:
    assert len(layout().arrays(plan_of([chunk]))[0]["prefill_parts"]) == parts


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("chunks", [False, True])
def test_steps_fit_into_the_sizes_of_recorded_ones(layer: LayerSpec, chunks: bool) -> None:
    random = np.random.default_rng(2)
    for _ in range(100):
        plan, step = random_plan(random, chunks=chunks), layout(layer, int(random.choice([1, 20, 80, H200])))
        rows, longest = len(plan.kv_lens), int(plan.kv_lens.max())
        for given, groups in ((plan, True), (sharing(plan, []), False)):
            size = StaticSize(rows, plan.token_count, rows - plan.decodes, longest, prefix_groups=groups)
            most, most_numbers = step.static_sizes(size, block_size=1)
            vectors, numbers = step.arrays(given)
            assert most.keys() == vectors.keys() - {"tables"}
            assert all(len(vectors[name]) <= count for name, count in most.items())
            assert all(numbers[name] <= count for name, count in most_numbers.items())


def test_what_is_never_cut_needs_no_merges() -> None:
    for layer, longest in ((LAYERS[1], 30_000), (LLAMA, 511)):
        sizes, partials = layout(layer).decode_sizes(256, longest, prefix_groups=False)
        assert (sizes["decode_parts"], sizes["decode_merges"], partials) == (256, 0, 0)


def partial_bytes(layer: LayerSpec, partials: int) -> int:
    return partials * layer.heads * (layer.value_dim + 1) * 4


@pytest.mark.parametrize("layer", LAYERS)
def test_partials_are_bounded_in_bytes(layer: LayerSpec) -> None:
    """On an H200: of a recorded step of 256 rows, 24 MiB; of any tiles, as many as the queries of 528 of
    them."""
    step = layout(layer)
    _, partials = step.decode_sizes(256, 131_072, prefix_groups=True)
    assert partial_bytes(layer, partials) <= 24 * 2**20
    random = np.random.default_rng(3)
    queries = max(128, layer.heads // layer.kv_heads)
    for _ in range(50):
        lens = [(int(2 ** random.uniform(0, 17)), int(2 ** random.uniform(1, 8))) for _ in range(9)]
        _, numbers = step.arrays(plan_of(lens[: random.integers(1, 9)]))
        most = H200 * queries * (layer.value_dim + 1) * 4
        assert partial_bytes(layer, numbers["prefill_partials"]) <= most


def test_widths_are_those_of_the_vectors() -> None:
    vectors, _ = layout().arrays(sharing(plan_of([(40, 1), (50, 1), (9000, 3)]), [(16, (0, 1))]))
    assert {name: vectors[name].shape[1] for name in WIDTHS} == WIDTHS
    assert all(len(vectors[name]) for name in WIDTHS)
