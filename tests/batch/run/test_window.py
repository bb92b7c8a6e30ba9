"""The bounds of what is under way, and who waits at them."""

from __future__ import annotations

import asyncio

from millstream.batch.run.window import Window


def test_it_is_full_of_jobs_or_of_bytes() -> None:
    window = Window(jobs=2, held_bytes=100)
    assert window.try_enter(60)
    assert not window.try_enter(41)
    assert window.try_enter(40)
    assert not window.try_enter(0)
    window.leave(60)
    assert window.try_enter(60)


def test_a_line_above_all_bytes_goes_alone() -> None:
    window = Window(jobs=9, held_bytes=100)
    assert window.try_enter(1000)
    assert not window.try_enter(1)
    window.leave(1000)
    assert window.try_enter(1)
    assert not window.try_enter(1000)


async def test_waiting_for_room() -> None:
    window = Window(jobs=9, held_bytes=100)
    window.try_enter(50)
    window.try_enter(50)
    waiting = asyncio.create_task(window.enter(80))
    window.leave(50)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()  # 50 and 80 are too many yet
    window.leave(50)
    await waiting
    assert not window.try_enter(30)


async def test_lines_that_are_sent_take_more_bytes() -> None:
    window = Window(jobs=9, held_bytes=100)
    assert window.try_enter(30)
    assert window.try_enter(0)
    assert window.try_load(90)  # the first always can
    assert not window.try_load(1)
    assert not window.try_enter(1)
    waiting = [asyncio.create_task(window.load(40)) for _ in range(2)]
    await asyncio.sleep(0)
    window.unload(60)  # an image was smaller than it might have been
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in waiting] == [True, False]
    window.unload(40)
    await waiting[1]
    assert not window.try_load(1)
    assert window.try_enter(0)


async def test_what_was_sent_counts_until_it_ends() -> None:
    window = Window(jobs=9, held_bytes=100, message_bytes=150)
    assert window.try_enter(0)
    assert window.try_load(90)
    window.send(90)
    assert window.try_enter(50)
    window.send(0, 40)  # of the 50 that it entered with
    assert not window.try_load(20)
    assert not window.try_enter(20)
    waiting = asyncio.create_task(window.load(100))
    await asyncio.sleep(0)
    window.end(40)
    await asyncio.sleep(0)
    assert not waiting.done()
    window.end(90)
    await waiting
