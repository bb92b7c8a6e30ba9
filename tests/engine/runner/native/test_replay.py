"""Calls that the library makes again."""

from __future__ import annotations

import ctypes

import numpy as np

from millstream_worker.engine.runner.native.library import Library


def test_functions_get_their_arguments_in_order(library: Library) -> None:
    """As many as they take, of 64 bits and of 32, in registers and on the stack."""
    heard: list[tuple[int, ...]] = []
    most = library.replayed_arguments
    assert most >= 20
    kinds = [
        (ctypes.c_int64,),
        (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64) * 3,
        (ctypes.c_int64,) * 6 + (ctypes.c_int32,) * (most - 6),
    ]
    functions = [ctypes.CFUNCTYPE(None, *kind)(lambda *given: heard.append(given)) for kind in kinds]
    calls = np.zeros((len(functions) + 1, 1 + most), np.int64)
    for row, function, kind in zip(calls, functions, kinds, strict=False):
        row[0] = ctypes.cast(function, ctypes.c_void_p).value
        row[1 : 1 + len(kind)] = np.arange(1, 1 + len(kind))
        row[1 + len(kind) :] = -1
    calls[-1] = calls[0]
    calls[-1, 1] = -(2**40)
    assert library.replay(calls.ctypes.data, len(calls), 1)
    assert heard == [*(tuple(range(1, 1 + len(kind))) for kind in kinds), (-(2**40),)]
    assert library.replay(calls.ctypes.data, 0, 1)
    assert len(heard) == 4


def test_ends_at_a_call_that_throws(library: Library) -> None:
    """As compiled code does with an index that is out of bounds."""
    heard: list[int] = []
    call = ctypes.CFUNCTYPE(None)(lambda: heard.append(1))
    throw = ctypes.CDLL("libstdc++.so.6")._ZSt17__throw_bad_allocv
    calls = np.zeros((3, 1 + library.replayed_arguments), np.int64)
    calls[:, 0] = [ctypes.cast(function, ctypes.c_void_p).value for function in (call, throw, call)]
    assert not library.replay(calls.ctypes.data, 3, 1)
    assert heard == [1]
