"""Many inputs in several processes, each with a bound on what it may take."""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from fuzz.target import Tally, Target, run
from fuzz.targets import BY_NAME

_PIECES = 40  # of a target's inputs: what is spread over the processes
_MOST_MEMORY = 6 * 2**30  # beyond what a process begins with
_STUCK_S = 900  # after which a piece is taken to hang outside of Python

Piece = tuple[str, int, int]  # target, count, first


def run_all(targets: Sequence[Target], seed: str, inputs: int, processes: int) -> list[Tally]:
    tallies = {target.name: Tally(target.name) for target in targets}
    pieces = list(_pieces(targets, inputs))
    random.Random(seed).shuffle(pieces)  # the slow ones are spread
    with ProcessPoolExecutor(processes, get_context("spawn"), _prepare) as pool:
        runs = {pool.submit(_run, seed, piece): piece for piece in pieces}
        for done, future in enumerate(as_completed(runs), 1):
            try:
                tallies[runs[future][0]].add(future.result())
            except BrokenProcessPool:
                name, count, first = runs[future]
                lost = f"a process has died; perhaps of {name}, inputs {first} to {first + count - 1}"
                print(lost, file=sys.stderr)
                tallies[name].crashes += 1
            if done % 100 == 0:
                print(f"{done} of {len(runs)} pieces", file=sys.stderr)
    return list(tallies.values())


def _pieces(targets: Sequence[Target], inputs: int) -> Iterator[Piece]:
    """Each target's share of the inputs, in pieces."""
    whole = sum(target.share for target in targets)
    for target in targets:
        count = max(1, -int(-inputs * target.share // whole))
        step = -(-count // _PIECES)
        for first in range(0, count, step):
            yield target.name, min(step, count - first), first


def _prepare() -> None:
    """In each process: what takes all memory gets a MemoryError, what hangs in C is ended with its place."""
    warnings.simplefilter("ignore")  # of libraries, about values that are refused a moment later
    faulthandler.enable()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MOST_MEMORY, resource.RLIM_INFINITY))


def _run(seed: str, piece: Piece) -> Tally:
    name, count, first = piece
    faulthandler.dump_traceback_later(_STUCK_S, exit=True)
    try:
        return run(BY_NAME[name], seed, count, first)
    finally:
        faulthandler.cancel_dump_traceback_later()
