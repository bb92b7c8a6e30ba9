"""Steps of short rows have a shorter way to be laid out."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
from support.engine.planning import Segment, pack, sharing

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.native.native_backend import step_numbers
from millstream_worker.engine.runner.attention.native.short_rows import ShortRows, short
from millstream_worker.engine.runner.attention.native.work_items import PART_KEYS
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.native.library import StepNumbers


def plan_of(rows: int, longest: int = PART_KEYS - 1, block_size: int = 16) -> Plan:
    chance = random.Random(rows)
    starts = [chance.choice([0, 15, chance.randrange(longest)]) for _ in range(rows - 1)] + [longest]
    blocks = iter(range(1, 10**6))
    return pack(
        [
            Segment(slot, [0], start, [next(blocks) for _ in range(start // block_size + 1)])
            for slot, start in enumerate(starts)
        ],
        block_size,
    )


def seen(numbers: StepNumbers) -> dict[str, object]:
    """What a step's numbers say, and what stands where they point."""
    rows = numbers.tokens

    def there(name: str, shape: tuple[int, ...], kind: type = np.int32) -> list[object]:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        data = ctypes.string_at(getattr(numbers, name), size)
        return np.frombuffer(data, kind).reshape(shape).tolist()

    counts = ("piece_count", "split_count", "tokens", "threads", "together")
    return {
        **{name: getattr(numbers, name) for name in counts},
        "pieces": there("pieces", (numbers.piece_count, 6)),
        "positions": there("positions", (rows,)),
        "members": there("members", (rows,)),
        "first_parts": there("first_parts", (rows,)),
        "slots": there("slots", (rows,), np.int64),
        "tables": there("tables", (rows, numbers.table_width)),
    }


@pytest.mark.parametrize("block_size", [16, 24, 1024])
@pytest.mark.parametrize("window", [None, 1, 100, 700])
def test_they_are_laid_out_as_any_rows_are(window: int | None, block_size: int) -> None:
    """In the same arrays, whatever was there before."""
    layer = LayerSpec(6, 2, 64, 64, scale=1.0, window=window)
    rows = ShortRows(layer, block_size)
    for count in (1, 40, 2, 150, 1, 64):
        plan = plan_of(count, block_size=block_size)
        general, arrays = step_numbers(plan, layer)
        assert short(plan)
        assert seen(rows.lay_out(plan)) == seen(general)
        del arrays


def test_unused_places_of_a_table_do_not_matter() -> None:
    layer = LayerSpec(4, 4, 64, 64, scale=1.0)
    rows = ShortRows(layer, 16)
    rows.lay_out(plan_of(3))
    plan = plan_of(3, longest=20)
    there = seen(rows.lay_out(plan))["tables"]

    assert isinstance(there, list)
    assert np.array(there)[:, :2].tolist() == plan.block_tables[0].tolist()


def test_long_rows_prompts_and_prefix_groups_go_the_general_way() -> None:
    assert short(plan_of(3))
    assert not short(plan_of(3, longest=PART_KEYS))
    assert not short(pack([Segment(0, [0, 1], 8, [1])], 16))
    two = pack([Segment(slot, [0], 40, [1, 2, 3 + slot]) for slot in range(2)], 16)
    assert short(two)
    assert not short(sharing(two, [(32, [0, 1])]))
