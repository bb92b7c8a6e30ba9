"""Lines of a batch, of which every third has the same long beginning, and the jobs that come of them."""

from __future__ import annotations

from support.batches import Line, chat
from support.equal_batch_lines import text_of
from support.workers.hand_worker import HandJob

DOCUMENTS = [f"document {name} " * 100 for name in "abc"]  # more than 1 KiB


def chats_alike(count: int) -> list[Line]:
    """Lines r0, r1, …"""
    return [chat(number, f"{DOCUMENTS[number % 3]} {number}", 5) for number in range(count)]


def number_of(job: HandJob) -> int:
    """The line's, with which its text ends."""
    return int(text_of(job).rpartition(" ")[2])
