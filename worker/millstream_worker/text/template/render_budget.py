"""Bounds the processor time and the characters of one rendering of a chat template, both in proportion to
its input. A template is a program that comes with a checkpoint: an endless one would hold a thread for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import thread_time

CPU_S = 2.0
CPU_S_A_CHARACTER = 1e-6  # of input: a rendering takes a tenth of that
MOST_CHARACTERS = 2**26
CHARACTERS_A_CHARACTER = 256  # of input
_COPIED = 16  # characters of a copy count as one: many texts are put together piece by piece
_LOOK_EVERY = 32  # takings: the clock costs as much as ten of them
_NODE = 64  # characters that stand for the time and memory of a value, whatever is in it
_SCALARS = (int, float, type(None))


class TemplateTooMuch(Exception):
    """A rendering takes too much. The message goes on from "the template …"."""


class RenderBudget:
    """Counts what one rendering, in one thread, may still take. `left`: characters."""

    __slots__ = ("_end_s", "_takings", "left")

    def __init__(self, input_size: int) -> None:
        self.left = MOST_CHARACTERS + CHARACTERS_A_CHARACTER * input_size
        self._end_s = thread_time() + CPU_S + CPU_S_A_CHARACTER * input_size
        self._takings = 0

    def take(self, characters: int) -> None:
        """Raises TemplateTooMuch."""
        self.left -= characters
        if self.left < 0:
            raise TemplateTooMuch("makes too much text")
        self._takings += 1
        if not self._takings % _LOOK_EVERY:
            self.look()

    def take_joined(self, sizes: Sequence[int]) -> None:
        """Takes for a text that is made of texts of these sizes. Raises TemplateTooMuch."""
        whole = sum(sizes)
        self.take(whole - max(sizes) + whole // _COPIED)

    def check(self, characters: int) -> None:
        """Raises TemplateTooMuch if that many are not left; takes none."""
        if characters > self.left:
            raise TemplateTooMuch("makes too much text")

    def look(self) -> None:
        """Raises TemplateTooMuch if the time is over."""
        if thread_time() > self._end_s:
            raise TemplateTooMuch("takes too long")

    def size(self, value: object) -> int:
        """Returns the size of a value as text. Raises TemplateTooMuch if it is more than is left: lists of
        one list, again and again, are small and have endless texts.
        """
        if type(value) is str:
            return len(value)
        return size_of(value, self.left)


def size_of(value: object, most: int) -> int:
    """Returns characters, those of values that are in it several times each time. Raises TemplateTooMuch
    beyond `most`.
    """
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        size += _NODE
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, dict):
            waiting += one
            waiting += one.values()
        elif not isinstance(one, _SCALARS) and isinstance(one, Collection):
            waiting += one
        if size > most:
            raise TemplateTooMuch("makes too much text")
    return size
