"""Defines operations of our own that torch's compiler calls and does not look into."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from millstream_worker.engine.runner.native.library import Library, Panels

T = TypeVar("T")
_library = torch.library.Library("millstream", "FRAGMENT")  # type: ignore[no-untyped-call]


@dataclass(slots=True, eq=False)
class Surroundings:
    """The globals that operations use beside operands: they are global to a process, and get no objects."""

    panels: Panels | None = None
    library: Library | None = None
    exactly: bool = False  # rows of quantised layers are multiplied as they are


SURROUNDINGS = Surroundings()


class Numbered(Generic[T]):
    """Finds objects by tensors with their numbers. Compiled code is the same for all layers of a kind, so it
    cannot hold an object that one of them has: it is given such a tensor instead."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._registered: WeakValueDictionary[int, T] = WeakValueDictionary()

    def register(self, one: T) -> Tensor:
        """Returns the int64 tensor on the CPU that stands for `one`, while somebody holds that."""
        number = next(self._numbers)
        self._registered[number] = one
        with torch.inference_mode(False):  # code that was compiled for a usual tensor takes no other
            return torch.tensor(number)

    def __getitem__(self, number: Tensor) -> T:
        return self._registered[int(number)]


def define(schema: str, run: Callable[..., Tensor], shape: Callable[..., Tensor]) -> None:
    """Makes `torch.ops.millstream.<name of the schema>` compute `run`. `shape` answers an empty tensor of the
    shape that `run` answers."""
    name = schema.partition("(")[0]
    tags = (torch.Tag.needs_exact_strides,)  # compiled code gives what the model's own would
    _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"millstream::{name}", shape, lib=_library)
