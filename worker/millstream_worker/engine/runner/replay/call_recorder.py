"""Records what a step calls while it is computed: functions of our library, and what torch has compiled.

Each call is a function's address and its arguments, addresses of tensors and whole numbers. A tensor must
lie where it will lie in each step: in a workspace, or in memory that lasts, as weights do. An operation of
torch's own is not recorded. Its output lies elsewhere, which is seen, or the comparison of a replayed step
finds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.replay.workspace import Workspace

_COMPILED = "cpp_"  # with this begin the names of compiled functions in torch's generated modules
_ENTRY = "kernel"  # what they are called in their library
_EMPTY = "empty_strided_cpu"
_OTHERS = "extern_kernels"  # torch's own, which write where they are told to


class CannotReplay(Exception):
    """Steps are computed as before; the message says why."""


class CallRecorder:
    """The calls of one step, as a `CallInterceptor` of the library makes and records them."""

    def __init__(self, workspace: Workspace, lasting: Iterable[Tensor], most_arguments: int) -> None:
        self._workspace = workspace
        self._lasting = {tensor.untyped_storage().data_ptr() for tensor in lasting}
        self._most = most_arguments
        self._calls: list[list[int]] = []
        workspace.restart()

    @property
    def calls(self) -> NDArray[np.int64]:
        """[calls, 1 + most_arguments], as the library takes them."""
        calls = np.zeros((len(self._calls), 1 + self._most), np.int64)
        for row, call in zip(calls, self._calls, strict=True):
            row[: len(call)] = call
        return calls

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        with intercept.intercepted(self), contextlib.ExitStack() as changes:
            for module in torch_internals.generated_modules():
                if {_EMPTY, _OTHERS} <= vars(module).keys():  # of compiled code
                    changes.enter_context(_changed(module, self._substitutes(module)))
            yield

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        return self._workspace.empty(shape, like.dtype)

    def call(self, function: Any, tensors: Sequence[Tensor | None], numbers: Sequence[int]) -> None:
        address = ctypes.cast(function, ctypes.c_void_p).value
        places = [0 if tensor is None else self._place(tensor) for tensor in tensors]
        self._record(address, (*places, *numbers))
        function(*places, *numbers)

    def _substitutes(self, module: ModuleType) -> dict[str, object]:
        changed: dict[str, object] = {_EMPTY: self._workspace.empty_strided, _OTHERS: _Refused()}
        for name, value in vars(module).items():
            if name.startswith(_COMPILED) and isinstance(value, BuiltinFunctionType):
                changed[name] = self._recording(value)
        return changed

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled function that records its calls."""
        address = _address(function)

        def call(*arguments: Any) -> None:
            self._record(address, [self._argument(argument) for argument in arguments])
            function(*arguments)

        return call

    def _argument(self, argument: Any) -> int:
        if isinstance(argument, Tensor):
            return self._place(argument)
        if isinstance(argument, int):
            return argument
        raise CannotReplay(f"compiled code takes a {type(argument).__name__}")

    def _place(self, tensor: Tensor) -> int:
        if not self._workspace.holds(tensor) and tensor.untyped_storage().data_ptr() not in self._lasting:
            raise CannotReplay(f"a tensor {list(tensor.shape)} of {tensor.dtype} is not ours")
        return tensor.data_ptr()

    def _record(self, address: int | None, arguments: Sequence[int]) -> None:
        if not address:
            raise CannotReplay("a function has no address")
        if len(arguments) > self._most:
            raise CannotReplay(f"a function takes {len(arguments)} arguments, more than {self._most}")
        self._calls.append([address, *arguments])


class _Refused:
    """In place of functions that cannot be recorded."""

    def __getattr__(self, name: str) -> Any:
        raise CannotReplay(f"compiled code calls torch's own {name}")


@functools.cache
def _address(function: Any) -> int | None:
    """Where the function of a library is that a module of C wraps for Python."""
    library = ctypes.CDLL(function.__self__.__file__)
    return ctypes.cast(getattr(library, _ENTRY), ctypes.c_void_p).value


@contextlib.contextmanager
def _changed(module: ModuleType, changes: dict[str, object]) -> Iterator[None]:
    names = vars(module)
    before = {name: names[name] for name in changes}
    names.update(changes)
    try:
        yield
    finally:
        names.update(before)
