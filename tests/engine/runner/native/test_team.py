"""Threads that take pieces of a step's work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from millstream_worker.engine.runner.native import build as building
from millstream_worker.engine.runner.native import compiler
from millstream_worker.engine.runner.native.build import FLAGS
from millstream_worker.engine.runner.native.library import Library

SOURCES = Path(building.__file__).parent / "src"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, library: Library) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("team")
    command, _ = building._compiler()
    source = str(Path(__file__).with_name("team.cpp"))
    compiler.run(*command, *FLAGS, f"-I{SOURCES}", "-c", source, folder=str(folder))
    compiler.run(*command, "-shared", "team.o", "-o", "team.so", folder=str(folder))
    loaded = ctypes.CDLL(str(folder / "team.so"))
    loaded.count_pieces.restype = ctypes.c_int64
    loaded.seconds_beside_late.restype = ctypes.c_double
    loaded.seconds_beside_late.argtypes = [ctypes.c_double, ctypes.c_bool]
    return loaded


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("shares", "pieces"), [(2, 8), (3, 1), (8, 3), (1, 7)])
def test_each_piece_is_computed_once(threads: int, shares: int, pieces: int, team: ctypes.CDLL) -> None:
    """By a team of fewer threads than shares, too, and of more than there are cores."""
    works = 500
    counts = np.zeros((shares, pieces), np.int64)
    firsts = team.count_pieces(threads, works, shares, pieces, ctypes.c_void_p(counts.ctypes.data))
    assert (counts == works).all()
    assert works <= firsts <= works * min(threads, shares * pieces)


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_without_a_team_openmp_computes_each_number(count: int, team: ctypes.CDLL) -> None:
    spans, singles = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for threads in (1, 2, 3):
        places = (ctypes.c_void_p(array.ctypes.data) for array in (spans, singles))
        team.count_numbers(threads, count, *places)
    assert (spans == 3).all()
    assert (singles == 3).all()


def test_nobody_waits_for_a_thread_that_has_begun_nothing(team: ctypes.CDLL) -> None:
    assert team.seconds_beside_late(1.0, False) < 0.5


def test_a_thread_that_stands_still_holds_up_one_piece(team: ctypes.CDLL) -> None:
    """The leader computes the other seven of its share."""
    assert 0.3 <= team.seconds_beside_late(0.3, True) < 0.6


@pytest.mark.parametrize("threads", [1, 2])
def test_regions_of_compiled_code_have_the_leaders_thread_alone(
    threads: int, team: ctypes.CDLL, library: Library
) -> None:
    """While its calls are replayed; afterwards they have all again."""
    torch.set_num_threads(2)
    heard: list[int] = []
    ask = ctypes.CFUNCTYPE(None)(lambda: heard.append(team.threads_within()))
    calls = np.zeros((1, 1 + library.replayed_arguments), np.int64)
    calls[0, 0] = ctypes.cast(ask, ctypes.c_void_p).value
    assert library.replay(calls.ctypes.data, 1, threads)
    assert heard == [1]
    assert team.threads_within() == 2


def test_a_child_of_the_process_can_compute(team: ctypes.CDLL) -> None:
    """A team ends with its step: there is none to be lost in a fork."""
    counts = np.zeros((2, 8), np.int64)
    team.count_pieces(2, 1, 2, 8, ctypes.c_void_p(counts.ctypes.data))
    child = os.fork()
    if child == 0:
        team.count_pieces(1, 1, 2, 8, ctypes.c_void_p(counts.ctypes.data))
        os._exit(0 if (counts == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
