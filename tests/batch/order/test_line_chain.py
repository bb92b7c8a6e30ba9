"""The order of lines, by their beginnings, beside the plainest way to find it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from millstream.batch.order.beginnings import SIZES
from millstream.batch.order.line_chain import LineChain

Path = tuple[int, ...]  # what the line has between one size and the next
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=len(SIZES)).map(tuple), max_size=40)


def linked(paths: Sequence[Path]) -> LineChain:
    hashes, starts = array("Q"), array("I", [0])
    for path in paths:
        hashes.extend(hash(path[: level + 1]) % 2**64 for level in range(len(path)))
        starts.append(len(hashes))
    chain = LineChain(starts, hashes)
    for _ in chain.steps():
        pass
    return chain


def beginnings(path: Path) -> Iterable[Path]:
    return (path[:count] for count in range(1, len(path) + 1))


@given(PATHS)
def test_groups_stand_where_their_first_lines_stand(paths: list[Path]) -> None:
    """Nested, in the file's order inside; what begins like no other stays where it is."""
    firsts: dict[Path, int] = {}
    keys = [
        ([firsts.setdefault(one, line) for one in beginnings(path)] + [line] * len(SIZES))[: len(SIZES)]
        for line, path in enumerate(paths)
    ]
    order = list(linked(paths).order)
    assert order == sorted(range(len(paths)), key=lambda line: (keys[line], line))


@given(PATHS)
def test_groups_are_whole(paths: list[Path]) -> None:
    order = list(linked(paths).order)
    assert sorted(order) == list(range(len(paths)))
    for path in paths:
        for one in beginnings(path):
            places = [place for place, line in enumerate(order) if paths[line][: len(one)] == one]
            assert places == list(range(places[0], places[0] + len(places)))


@given(PATHS)
def test_innermost_groups_and_shared_bytes_are_counted(paths: list[Path]) -> None:
    counts: dict[Path, int] = {}
    for path in paths:
        for one in beginnings(path):
            counts[one] = counts.get(one, 0) + 1
    groups = {one for one, count in counts.items() if count > 1}
    outer = {one[:-1] for one in groups}
    sizes = [after - before for before, after in zip((0, *SIZES), SIZES, strict=False)]
    chain = linked(paths)
    assert chain.groups == len(groups - outer)
    assert chain.shared_bytes == sum((counts[one] - 1) * sizes[len(one) - 1] for one in groups)


@given(st.lists(st.integers(0, len(SIZES)), max_size=40))
def test_lines_that_share_nothing_stay_in_their_order(levels: list[int]) -> None:
    chain = linked([(line,) * count for line, count in enumerate(levels)])
    assert list(chain.order) == list(range(len(levels)))
    assert (chain.groups, chain.shared_bytes) == (0, 0)
