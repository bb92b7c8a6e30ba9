"""The order in which the lines of an input are sent, as a pass over all of them finds it. It is kept nowhere:
a run that continues finds it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millstream.batch.order.line_chain import LineChain
from millstream.client.submit.request_cost import BYTES_PER_TOKEN

STRETCH_BYTES = 256 * 1024**2  # of lines that are held together, where an input cannot be read at any place
_LINE_BYTES = 256  # that a held line takes beside its own


@dataclass(slots=True, eq=False)
class LineOrder:
    """16 bytes a line. `stretches`: the number of lines of each part of the input that is ordered by itself.
    `repeated`: lines whose custom_id an earlier line of the file has.
    """

    places: array[int] = field(default_factory=lambda: array("Q"))  # bytes of the input that lines begin at
    numbers: array[int] = field(default_factory=lambda: array("I"))  # as editors count them
    order: array[int] = field(default_factory=lambda: array("I"))  # indices of both
    stretches: list[int] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    moved: bool = False  # a line is sent before one that it stands behind
    groups: int = 0
    shared_tokens: int = 0  # of beginnings that an earlier line has, too: an estimate

    def lines(self) -> Iterator[tuple[int, int, int | None]]:
        """Number and place of each line, as they are sent, and the place of the next one of the input, blank
        ones apart; None: it is the input's last.
        """
        for at in self.order:
            yield (
                self.numbers[at],
                self.places[at],
                self.places[at + 1] if at + 1 < len(self.places) else None,
            )


class OrderedPass:
    """Takes the lines of an input in its order. `order` is there after `end`, or the last of `steps`. At most
    100 bytes a line in memory.
    """

    def __init__(self, *, whole: bool = True) -> None:
        """`whole`: the input can be read at any place; otherwise it is ordered in stretches."""
        self.order = LineOrder()
        self._whole = whole
        self._starts, self._hashes = array("I", [0]), array("Q")  # of the stretch at hand
        self._held = 0  # bytes of its lines

    def take(self, number: int, place: int, size: int, beginnings: Sequence[int] = ()) -> None:
        """One more line of so many bytes; `beginnings`: as `beginnings_of` has them."""
        self._held += size + _LINE_BYTES
        if not self._whole and self._held > STRETCH_BYTES:
            self.end()
            self._held = size + _LINE_BYTES
        self.order.places.append(place)
        self.order.numbers.append(number)
        self._hashes.extend(beginnings)
        self._starts.append(len(self._hashes))

    def repeats(self, number: int) -> None:
        """The line has the custom_id of an earlier one."""
        self.order.repeated.add(number)

    def end(self) -> LineOrder:
        """Order the lines since the last stretch."""
        for _ in self.steps():
            pass
        return self.order

    def steps(self) -> Iterator[None]:
        """Do what `end` does; other tasks may run between two steps."""
        chain = LineChain(self._starts, self._hashes)
        yield from chain.steps()
        order, begin = self.order, len(self.order.order)
        order.order.extend(array("I", [begin + at for at in chain.order]) if begin else chain.order)
        order.stretches.append(len(chain.order))
        order.moved |= chain.moved
        order.groups += chain.groups
        order.shared_tokens += chain.shared_bytes // BYTES_PER_TOKEN
        self._starts, self._hashes = array("I", [0]), array("Q")
