"""Messages that wait for readers: bounded for each, and for all of a client together."""

from __future__ import annotations

import contextlib

import pytest

from millstream.client.streaming.mailbox import MAX_ALL_BYTES, MAX_BYTES, Mail, Mailbox, Mailroom


async def take(box: Mailbox) -> Mail:
    mail = await box.take(0.0)
    assert mail is not None
    return mail


@pytest.fixture
def room() -> Mailroom:
    return Mailroom()


async def test_messages_come_in_order_and_once(room: Mailroom) -> None:
    box = Mailbox(10, room)
    box.deliver("c", b"one")
    box.deliver("c", b"two")
    assert room.held_bytes == 6
    assert await take(box) == Mail([b"one", b"two"], lost=False)
    assert room.held_bytes == 0
    assert await box.take(0.0) is None


async def test_a_box_that_overflows_says_that_it_lost_some(room: Mailroom) -> None:
    box = Mailbox(3, room)
    for letter in (b"a", b"b", b"c", b"d"):  # by their number
        box.deliver("c", letter)
    assert await take(box) == Mail([b"d"], lost=True)
    for letter in (b"a", b"b", b"c"):  # by their bytes
        box.deliver("c", letter * (MAX_BYTES // 2))
    assert await take(box) == Mail([b"c" * (MAX_BYTES // 2)], lost=True)
    box.deliver("c", b"x" * MAX_BYTES)
    assert await take(box) == Mail([b"x" * MAX_BYTES], lost=False)
    assert room.held_bytes == 0


async def test_all_boxes_together_are_bounded(room: Mailroom) -> None:
    """Ten thousand readers that are not at home, each within its own bound."""
    letter = b"x" * (MAX_ALL_BYTES // 10)
    boxes = [Mailbox(10, room) for _ in range(50)]
    for _ in range(5):
        for box in boxes:
            box.deliver("c", letter)
    assert 0 < room.held_bytes <= MAX_ALL_BYTES
    mails = [await take(box) for box in boxes]  # each is told
    assert all(mail.lost or mail.payloads for mail in mails)
    assert sum(mail.lost for mail in mails) >= 40
    assert room.held_bytes == 0
    boxes[0].deliver("c", b"again")
    assert await take(boxes[0]) == Mail([b"again"], lost=False)


async def test_what_a_closed_box_held_is_free_again(room: Mailroom) -> None:
    with contextlib.closing(Mailbox(10, room)) as box:
        box.deliver("c", b"unread")
        assert (room.streams, room.held_bytes) == (1, 6)
    assert (room.streams, room.held_bytes) == (0, 0)


async def test_a_box_tells_a_new_subscription_from_an_overflow(room: Mailroom) -> None:
    """Only after the first are messages and log compared as a whole: the reader of a long log may be slow."""
    box = Mailbox(1, room)
    box.subscribed("c")
    assert await box.ready(0.0)
    for letter in (b"a", b"b"):
        box.deliver("c", letter)
    assert await take(box) == Mail([b"b"], lost=True)
    box.subscribed("c")
    for letter in (b"a", b"b"):
        box.deliver("c", letter)
    assert await take(box) == Mail([b"b"], lost=True, rejoined=True)
    box.deliver("c", b"c")
    assert await take(box) == Mail([b"c"], lost=False)
