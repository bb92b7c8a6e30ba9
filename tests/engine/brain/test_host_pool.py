"""Blocks of preempted rows in host memory: where they are, what a plan copies, and that it is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine.brain import ask, rig_of
from support.engine.counting import Rig

from millstream_worker.engine.brain.cache.blocks import BlockPool
from millstream_worker.engine.brain.cache.host_pool import HostPool


def names(*numbers: int) -> list[bytes]:
    return [bytes([number]) for number in numbers]


def kept(host: HostPool, **pages: int) -> list[list[int]]:
    """The copies out of a plan that keeps these blocks, by the names of their hashes."""
    for name, block in pages.items():
        host.keep(block, name.encode())
    out, _ = host.take_copies()
    host.check()
    return out.tolist()


def test_a_kept_page_is_fetched_in_a_later_plan() -> None:
    host = HostPool(4, most=10)
    assert kept(host, a=7, b=5) == [[7, 0], [5, 1]]
    slots = host.fetch([b"a", b"b", b"c"])
    for slot, block in zip(slots, (20, 21), strict=True):
        host.bring(slot, block)
    out, into = host.take_copies()
    assert (out.tolist(), into.tolist()) == ([], [[0, 20], [1, 21]])
    assert host.fetch([b"c", b"a"]) == []
    assert (host.used, host.kept, host.fetched) == (2, 2, 2)


def test_a_page_that_is_there_is_not_copied_again() -> None:
    host = HostPool(4, most=10)
    kept(host, a=7)
    assert kept(host, a=3) == []


def test_the_least_recently_used_page_gives_way() -> None:
    host = HostPool(2, most=10)
    kept(host, a=1, b=2)
    host.fetch([b"a"])
    host.take_copies()
    assert kept(host, c=3) == [[3, 1]]
    assert [len(host.fetch([name])) for name in (b"a", b"b", b"c")] == [1, 0, 1]


def test_what_a_plan_reads_or_writes_it_uses_for_nothing_else() -> None:
    host = HostPool(2, most=10)
    kept(host, a=1, b=2)
    (slot,) = host.fetch([b"a"])
    host.bring(slot, 9)
    for block, name in enumerate(names(1, 2, 3)):
        host.keep(block, name)  # one place is left in this plan
    out, into = host.take_copies()
    assert out.tolist() == [[0, 1]]
    assert into.tolist() == [[0, 9]]
    host.fetch([b"a"])
    host.drop(b"a")
    host.keep(5, b"new")
    assert host.take_copies()[0].tolist() == [[5, 1]]
    host.check()


def test_a_plan_copies_so_many_at_most() -> None:
    host = HostPool(9, most=2)
    assert len(kept(host, a=1, b=2, c=3)) == 2
    kept(host, c=3)
    assert len(host.fetch([b"a", b"b", b"c"])) == 2


def test_where_computing_is_faster_nothing_is_kept_or_fetched() -> None:
    host = HostPool(9, most=9)
    kept(host, a=1)
    host.weigh(2.0, 1.0)
    assert kept(host, b=2) == []
    assert host.fetch([b"a"]) == []


@pytest.mark.parametrize(
    "damage",
    [lambda host: host._free.append(0), lambda host: host._slots.popitem(), lambda host: host.keep(9, b"z")],
)
def test_check_finds_what_is_wrong(damage: Callable[[HostPool], object]) -> None:
    host = HostPool(4, most=4)
    kept(host, a=1)
    damage(host)
    with pytest.raises(AssertionError, match=r"host slot|without a plan"):
        host.check()


def test_a_host_pool_keeps_wanted_blocks_and_drops_damaged_ones() -> None:
    host = HostPool(4, most=4)
    pool = BlockPool(2, host)
    blocks = [pool.take(), pool.take()]
    for block, name in zip(blocks, names(1, 2), strict=True):
        pool.publish(block, name)
    pool.release(blocks[:1], wanted=True)
    pool.release(blocks[1:])
    assert pool.take() == blocks[0]
    assert pool.take() == blocks[1]
    assert host.take_copies()[0].tolist() == [[blocks[0], 0]]
    pool.publish(blocks[0], names(1)[0])
    pool.forget(blocks)
    assert host.used == 0


def displaced(rig: Rig) -> None:
    """A row of 48 tokens gives way to an interactive one that takes nearly all of the pool; it comes back."""
    rig.add(ask(1, 48, max_tokens=8))
    rig.steps(2)
    rig.run(ask(2, 60, priority=0, max_tokens=3))


def test_a_row_comes_back_without_being_computed_again(depth: int) -> None:
    computed = {}
    for host_blocks in (0, 40):
        rig = rig_of(blocks=17, pipeline_depth=depth, host_blocks=host_blocks)
        displaced(rig)
        stats = rig.scheduler.stats()
        computed[host_blocks] = stats.prompt_computed_total
        assert stats.preemptions_total == 1
        assert (stats.swapped_in_total > 0) == (stats.swapped_out_total > 0) == bool(host_blocks)
    assert computed[40] == 48 + 60
    assert computed[0] > 48 + 60 + 30


@pytest.mark.parametrize("aborted", [False, True])
def test_what_came_back_is_shared_again(aborted: bool) -> None:
    """A row with the same prompt arrives while the first waits; both find the content of its pages, and the
    second does so, too, where the first is aborted."""
    rig = rig_of(ask(1, range(48), max_tokens=30), blocks=30, host_blocks=40)
    rig.step()
    rig.add(ask(2, 100, priority=0, max_tokens=3))
    rig.step()
    if aborted:
        rig.abort(1)
    rig.run(ask(3, (*range(48), 7)))
    stats = rig.scheduler.stats()
    assert stats.prompt_computed_total == 48 + 100 + 1
    assert stats.swapped_in_total == stats.swapped_out_total > 0
    assert dict(rig.admitted)[3] == 48


def test_the_rate_of_steps_decides() -> None:
    """A step takes a second here, whatever is in it."""
    for host_block_s, swaps in ((0.001, True), (5.0, False)):
        rig = rig_of(blocks=17, host_blocks=40, host_block_s=host_block_s)
        displaced(rig)
        assert bool(rig.scheduler.stats().swapped_out_total) is swaps


def test_a_row_aborted_while_swapped_out_leaves_nothing_behind() -> None:
    rig = rig_of(ask(1, 48, max_tokens=8), blocks=17, host_blocks=14)
    rig.step()
    rig.add(ask(2, 60, priority=0, max_tokens=3))
    rig.step()
    assert rig.scheduler.stats().swapped_out_total > 0
    rig.abort(1)
    rig.run()
    for handle in range(10, 16):  # the pages' places serve others
        rig.add(ask(handle, 48, max_tokens=8))
        rig.step()
        rig.run(ask(100 + handle, 60, priority=0, max_tokens=3))
    assert rig.scheduler.stats().swapped_in_total >= 6 * 10


def test_damage_is_not_brought_back() -> None:
    rig = rig_of(blocks=17, host_blocks=40)
    displaced(rig)
    rig.model.non_finite = {1000 * 1 % 1000 + 48}
    rig.add(ask(3, range(1000, 1048)))
    rig.expected.pop(3)
    rig.run()
    assert rig.finished[3] == "error"
    rig.model.non_finite = set()
    rig.run(ask(4, range(1000, 1048)))
    assert dict(rig.admitted)[4] == 0
