"""The pass that finds the order: its memory, and its stretches."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from millstream.batch.order import line_order
from millstream.batch.order.beginnings import SIZES
from millstream.batch.order.line_order import LineOrder, OrderedPass


@pytest.mark.parametrize("each", [1, 2, 10])
def test_the_longest_lines_take_100_bytes_each(each: int) -> None:
    count, chance = 4_000, random.Random(7)
    groups = [[chance.getrandbits(64) for _ in SIZES] for _ in range(count // each)]
    lines = [groups[number % len(groups)] for number in range(count)]
    tracemalloc.start()
    try:
        ordered = OrderedPass()
        for number, beginnings in enumerate(lines, 1):
            ordered.take(number, number * 100_000, 100_000, beginnings)
        order = ordered.end()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * count
    assert kept < 20 * count
    assert order.groups == (0 if each == 1 else len(groups))


def ordered(lines: str, *, whole: bool) -> LineOrder:
    """Lines of 100 bytes; those with the same letter begin alike."""
    made = OrderedPass(whole=whole)
    for place, letter in enumerate(lines):
        made.take(place + 1, place * 101, 100, [ord(letter)])
    return made.end()


def test_a_stream_is_ordered_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_order, "STRETCH_BYTES", 4 * 356)
    stream = ordered("ababababcac", whole=False)
    assert stream.stretches == [4, 4, 3]
    assert list(stream.order) == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9]
    assert (stream.groups, stream.shared_tokens) == (5, 5 * 1024 // 4)
    file = ordered("ababababcac", whole=True)
    assert file.stretches == [11]
    assert list(file.order) == [0, 2, 4, 6, 9, 1, 3, 5, 7, 8, 10]
    lines = list(file.lines())
    assert [number for number, *_ in lines] == [1, 3, 5, 7, 10, 2, 4, 6, 8, 9, 11]
    assert lines[4:6] == [(10, 909, 1010), (2, 101, 202)]
    assert lines[-1] == (11, 1010, None)


def test_steps_end_a_pass_as_its_end_does() -> None:
    """And leave no stretch without lines behind."""
    made = OrderedPass(whole=True)
    for place in range(600):
        made.take(place + 1, place * 101, 100, [place % 2])
    assert sum(1 for _ in made.steps()) > 2
    assert made.order.stretches == [600]
    assert list(made.order.order) == [*range(0, 600, 2), *range(1, 600, 2)]
