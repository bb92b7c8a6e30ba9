"""Finds the lines of a run that have one answer, of which only the first is computed.

That line is the leader; equal ones are its followers while it is under way. Its failure is not theirs: the
first follower leads the others then, and if that fails, too, each is computed by itself. Knows no jobs and no
files.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from millstream.batch.rows.batch_lines import BatchLine

P = TypeVar("P")


@dataclass(slots=True, eq=False)
class Leader:
    """`after_failure`: an equal line has failed before it."""

    digest: str  # of its line
    after_failure: bool = False
    followers: list[BatchLine] = field(default_factory=list)


class EqualLines(Generic[P]):
    """Mutable; one per run. A row without an `answer_key` is equal to no other."""

    def __init__(self, most_answers: int | None = None) -> None:
        """`most_answers`: that are remembered; None: all."""
        self.followers = 0  # prompts of rows that wait for an equal one
        self._leaders: dict[bytes, Leader] = {}  # under way, by answer_key
        # where the rows of answers are, instead of the answers: about 150 bytes a line
        self._places: OrderedDict[bytes, P] = OrderedDict()
        self._most_answers = most_answers

    def place_of(self, row: BatchLine) -> P | None:
        """The place of an equal row with an answer, if there is one."""
        return None if row.answer_key is None else self._places.get(row.answer_key)

    def try_follow(self, row: BatchLine) -> bool:
        """Hold the row if an equal one is under way."""
        if row.answer_key is None or (leader := self._leaders.get(row.answer_key)) is None:
            return False
        leader.followers.append(row)
        self.followers += row.prompts
        return True

    def lead(self, row: BatchLine) -> None:
        """Let equal rows follow this one, unless there is another leader."""
        if row.answer_key is not None:
            self._leaders.setdefault(row.answer_key, Leader(row.digest))

    def answered(self, row: BatchLine, place: P) -> list[BatchLine]:
        """The rows that get the answer of the row at this place now."""
        if row.answer_key is None:
            return []
        self._places[row.answer_key] = place
        if self._most_answers is not None and len(self._places) > self._most_answers:
            self._places.popitem(last=False)
        leader = self._leaders.pop(row.answer_key, None)
        return [] if leader is None else self._released(leader)

    def failed(self, row: BatchLine) -> list[BatchLine]:
        """The rows to compute now, because the row has no answer for them."""
        key = row.answer_key
        if key is None or (leader := self._leaders.get(key)) is None or leader.digest != row.digest:
            return []
        del self._leaders[key]
        if not (rows := self._released(leader)):
            return []
        following = self._leaders[key] = Leader(rows[0].digest, after_failure=True)
        if leader.after_failure:
            return rows
        following.followers = rows[1:]
        self.followers += row.prompts * len(following.followers)
        return rows[:1]

    def _released(self, leader: Leader) -> list[BatchLine]:
        self.followers -= sum(row.prompts for row in leader.followers)
        return leader.followers
