"""Bounds of a GGUF file's header, looked at before it is read: its reader makes an object of each value that
the header announces, whatever the size of the file. The form:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Needs no torch.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from millstream_worker.engine.runner.checkpoint.size_bounds import check_config

_VERSIONS = (2, 3)  # of one form
_STRING, _ARRAY = 8, 9
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_TENSORS = 2**16
_MOST_FIELDS = 2**16
_MOST_ELEMENTS = 2**22  # of all arrays together; the largest vocabularies with their merges have 1.3 million
_MOST_DIMENSIONS = 4
_OF_NO_SIZE = ("general.", "tokenizer.", "split.")  # names of which none is a size of the model


def check_header(file: Path) -> None:
    """Raises ValueError with the field that is out of bounds, OSError where the file cannot be read. Other
    damage is for the reader of GGUF to find.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] == b"GGUF":
            _Header(data).check()


class _Header:
    """A walk over a header, from value to value."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._place = 4
        self._order = "<"
        self._elements = 0
        self._sizes: dict[str, Any] = {}

    def check(self) -> None:
        version = self._number("I", "version")
        if not version & 0xFFFF:
            self._order, version = ">", version >> 24
        if version not in _VERSIONS:
            return
        tensors, fields = self._number("Q", "tensor_count"), self._number("Q", "kv_count")
        self._bounded("tensor_count", tensors, _MOST_TENSORS)
        self._bounded("kv_count", fields, _MOST_FIELDS)
        for _ in range(fields):
            self._field()
        check_config(self._sizes, len(self._data), "its metadata")
        for _ in range(tensors):
            self._tensor()

    def _field(self) -> None:
        name = self._string("a name in the metadata")
        value = self._value(self._number("I", name), name)
        if not name.startswith(_OF_NO_SIZE):
            self._sizes[name.partition(".")[2]] = value  # without the architecture

    def _value(self, kind: int, name: str, depth: int = 0) -> Any:
        """Returns a number; None for anything else."""
        if kind == _STRING:
            self._string(name)
        elif kind == _ARRAY:
            self._bounded(f"the depth of {name}", depth, 1)
            self._array(name, depth)
        elif kind in _FORMS:
            return self._number(_FORMS[kind], name)
        else:
            raise ValueError(f"{name} has the type {kind}, which there is not; fetch the file anew")
        return None

    def _array(self, name: str, depth: int) -> None:
        kind, count = self._number("I", name), self._number("Q", name)
        self._bounded(f"the length of {name}", count, len(self._data) - self._place)
        self._elements += count
        self._bounded(f"the length of arrays up to {name}", self._elements, _MOST_ELEMENTS)
        if kind in _FORMS:
            self._skip(count * struct.calcsize(f"<{_FORMS[kind]}"), name)
            return
        for _ in range(count):
            self._value(kind, name, depth + 1)

    def _tensor(self) -> None:
        name = self._string("the name of a tensor")
        dimensions = self._number("I", name)
        self._bounded(f"the dimensions of {name}", dimensions, _MOST_DIMENSIONS)
        weights = 1
        for _ in range(dimensions):
            weights *= self._number("Q", name)
        self._bounded(f"the weights of {name}", weights, 8 * len(self._data))
        self._number("I", name)
        self._bounded(f"the offset of {name}", self._number("Q", name), len(self._data))

    def _string(self, what: str) -> str:
        size = self._number("Q", what)
        start = self._skip(size, what)
        return self._data[start : min(start + size, start + 256)].decode(errors="replace")

    def _number(self, form: str, what: str) -> Any:
        size = struct.calcsize(f"<{form}")
        [number] = struct.unpack_from(f"{self._order}{form}", self._data, self._skip(size, what))
        return number

    def _skip(self, size: int, what: str) -> int:
        """Returns where the skipped bytes begin."""
        start = self._place
        self._bounded(f"the end of {what}", start + size, len(self._data))
        self._place = start + size
        return start

    def _bounded(self, what: str, value: int, most: int) -> None:
        if value > most:
            raise ValueError(
                f"{what} is {value}, and can be {most} at most in a file of {len(self._data)} bytes; fetch "
                "it anew, or convert the model again"
            )
