"""python -m fuzz: two million inputs in two processes, half of them requests with a value of an extreme
shape, and a flood of both into a queue; a table of what came of them, exit with 1 at a violation."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from support.servers.servers import KINDS, Server, binary

from fuzz.crew import run_all
from fuzz.flood import flood
from fuzz.target import Tally, outcome, read
from fuzz.targets import ALL, BY_NAME

INPUTS = 2_000_000
ENTRIES = 100_000  # into the queue, on each kind of server


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.replay:
        return _replay(*chosen.replay)
    targets = [BY_NAME[name] for name in chosen.target] if chosen.target else list(ALL)
    begun = time.monotonic()
    tallies = run_all(targets, chosen.seed, chosen.inputs, chosen.processes)
    print(table(tallies, chosen.seed, time.monotonic() - begun), flush=True)
    sound = [_flood(kind, chosen.seed, chosen.entries) for kind in KINDS if chosen.entries and binary(kind)]
    return 0 if all(sound) and not any(tally.crashes for tally in tallies) else 1


def _replay(name: str, case: str) -> int:
    kind, said = outcome(BY_NAME[name], read(case))
    print(f"{name}: {kind} {said}")
    return 1 if kind == "crash" else 0


def _flood(kind: str, seed: str, entries: int) -> bool:
    """Whether all entries had their end."""
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=silent)  # each entry has its line
    begun = time.monotonic()
    with Server(kind) as server, tempfile.TemporaryDirectory() as folder:
        try:
            flooded = asyncio.run(flood(server, Path(folder), seed, entries))
        except Exception as error:  # noqa: BLE001 - the other server's turn comes all the same
            print(f"queue on {kind}: violation: {error!r}\n{server.log_tail()}")
            return False
    states, reasons = (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        for counts in (flooded.states, flooded.reasons)
    )
    print(
        f"queue on {kind}: {entries:,} entries in {time.monotonic() - begun:.0f} s: jobs {states} "
        f"({reasons}); {flooded.strangers} that name no job, {flooded.noted} notes; the good job after them "
        "completed"
    )
    return True


def table(tallies: Sequence[Tally], seed: str, seconds: float) -> str:
    whole = Tally("all")
    for one in tallies:
        whole.add(one)
    head = f"{'target':<18} {'inputs':>9} {'results':>9} {'errors':>9} {'crashes':>7} {'CPU s':>7} {'MiB':>6}"
    rows = [
        f"{one.target:<18} {one.inputs:>9,} {one.results:>9,} {one.errors:>9,} {one.crashes:>7,} "
        f"{one.seconds:>7.1f} {one.grown_mib:>6.0f}"
        for one in (*tallies, whole)
    ]
    violations = [str(violation) for one in tallies for violation in one.violations]
    return "\n".join([head, *rows, f"seed {seed}, {seconds:.0f} s", *violations])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--inputs", type=int, default=INPUTS, help="over all targets")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="into a real queue; 0: none")
    parser.add_argument("--target", action="append", choices=sorted(BY_NAME))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--replay", nargs=2, metavar=("TARGET", "HEX"), help="feed an input that a run has printed"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
