"""Recording on the CPU: what a CUDA graph does to a step, done by torch's dispatcher, so that a value which
is not where the recording reads it shows up as a wrong answer here, too."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord, Replay

_WAITING = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal"}
_WAITING_METHODS = {torch.Tensor.tolist, torch.Tensor.numpy}  # the dispatcher sees nothing of them


class CpuRecorder:
    """`Recorder`. Every operation is kept with its arguments, tensors by reference and numbers by value, and
    done again into the tensors it had answered."""

    def __init__(self) -> None:
        self.recordings = 0
        self._tape: _Tape | None = None

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        with _Tape(), _NoMethods():
            yield

    def begin(self) -> None:
        assert self._tape is None, "a recording within a recording"
        self._tape = _Tape()
        self._tape.__enter__()

    def end(self) -> Replay:
        tape = self._close()
        assert tape is not None, "nothing is being recorded"
        self.recordings += 1
        return tape.replay

    def drop(self) -> None:
        self._close()

    def free_bytes(self) -> int:
        return 0

    def start_over(self) -> None:
        gc.collect()

    def _close(self) -> _Tape | None:
        tape, self._tape = self._tape, None
        if tape is not None:
            tape.__exit__(None, None, None)
        return tape


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in _WAITING:
            raise CannotRecord(f"its code waits for values of the device in the middle of a step: {func}")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, _fresh(out, (args, kwargs))))
        return out

    def replay(self) -> None:
        for func, args, kwargs, fresh in self._calls:
            again = _fresh(func(*args, **kwargs), (args, kwargs))
            for tensor, value in zip(fresh, again, strict=True):
                tensor.copy_(value)


class _NoMethods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAITING_METHODS:
            raise CannotRecord(f"its code waits for values of the device in the middle of a step: {func}")
        return func(*args, **(kwargs or {}))


def _fresh(out: Any, given: Any) -> list[Tensor]:
    """The tensors that an operation made: no views, and nothing that it changed in place."""
    known = {_memory(leaf) for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and _memory(leaf) not in known]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
