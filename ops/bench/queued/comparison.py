"""The same work through the queue and without it: submitted to a real server by real clients, computed by a
real worker, streamed back to the clients; beside it the engine alone, in the same run, with as many threads.

    python -m ops.bench queued --model smol135m --workloads a c --engine-threads 1 --repeats 2

Alone and through the queue take turns. Clients, front and server need cores, too: on a machine of two, give
the engine one thread, and both sides of the comparison have it. The rate counts output tokens from the first
submission to the last token at its reader. The detokenizer is the demo model's. The bound is what the memory
and the matrix rate of so many threads allow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.engines.adapters import Setup
from ops.bench.engines.child import Assignment, warm_up
from ops.bench.engines.session import take_turn
from ops.bench.limits.work import work_of
from ops.bench.measures import Run, best
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.shapes import SHAPES
from ops.bench.models.size import ModelSize, size_of
from ops.bench.neighbours import KINDS, neighbour
from ops.bench.queued.stack import Stack, stack
from ops.bench.workloads import NAMES, make


@dataclass(frozen=True, slots=True)
class Queued:
    """A run through the queue, and the CPU seconds that each process took for it."""

    run: Run
    cpu_s: dict[str, float]


def main() -> None:
    options = _options()
    conditions = f"load at the start {os.getloadavg()[0]:.1f}"
    limits = machine.measure(options.engine_threads, options.device)
    threads = f"engine with {options.engine_threads} threads: {limits}"
    print(f"{machine.describe()}, {threads}; {conditions}\n")
    print(
        "| workload | engine alone, out/s | through the queue, out/s | share | bound | TTFT s 50/99 "
        "| CPU seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for model in options.models:
        folder = checkpoint(model, options.device)
        size = size_of(folder)
        for name in options.workloads:
            alone: list[Run] = []
            queued: list[Queued] = []
            for repeat in range(options.repeats):
                assignment = _assignment(folder, size, name, repeat, options)
                with neighbour(options.beside, assignment) if options.beside else nullcontext():
                    alone.append(_alone(assignment, options.limit_s))
                    queued.append(through_queue(assignment, options.clients))
            least_s = work_of(make(name, size.vocab_size, options.scale), size).least_s(limits)
            print(row(f"{model} {name.upper()}", alone, queued, least_s), flush=True)


def _alone(assignment: Assignment, limit_s: float) -> Run:
    turn = take_turn(assignment, sys.executable, limit_s)
    if turn.problem:
        raise SystemExit(f"the engine alone: {turn.problem}")
    (name,) = assignment.workloads
    return turn.runs[name]


def through_queue(assignment: Assignment, clients: int) -> Queued:
    """One run of the assignment's workload, after a warm-up, on a server and a worker of its own."""
    (name,) = assignment.workloads
    with stack(assignment.setup, clients) as running:
        running.run(warm_up(assignment, name))
        return _measured(running, assignment, name)


def _measured(running: Stack, assignment: Assignment, name: str) -> Queued:
    before = running.cpu_s()
    run, clients_s = running.run(assignment.workload(name))
    spent = {process: used - before[process] for process, used in running.cpu_s().items()}
    return Queued(run, spent | {"clients": clients_s})


def row(title: str, alone: Sequence[Run], queued: Sequence[Queued], least_s: float) -> str:
    """A line of the table: the best run of either side, and the rate of one that took `least_s`."""
    by_itself = best(alone)
    around = max(queued, key=lambda one: one.run.tokens_s)
    first = around.run.ttft_s()
    spent = sorted(around.cpu_s.items(), key=lambda pair: -pair[1])
    where = ", ".join(f"{process} {used:.1f}" for process, used in spent)
    return (
        f"| {title} | {by_itself.tokens_s:,.0f} | {around.run.tokens_s:,.0f} "
        f"| {around.run.tokens_s / by_itself.tokens_s:.1%} "
        f"| {around.run.output_tokens / least_s:,.0f} | {first[0]:.2f}/{first[2]:.2f} "
        f"| {where} of {around.run.seconds:.1f} s |"
    )


def _assignment(
    folder: Path, size: ModelSize, name: str, repeat: int, options: argparse.Namespace
) -> Assignment:
    workload = make(name, size.vocab_size, options.scale)
    lengths = zip(workload.prompts, workload.output_lengths, strict=True)
    setup = Setup(
        folder=str(folder),
        device=options.device,
        threads=options.engine_threads,
        kv_token_bytes=size.kv_token_bytes,
        kv_tokens=workload.prompt_tokens + workload.output_tokens,
        longest_row=max(len(prompt) + length for prompt, length in lengths),
        rows=len(workload.prompts),
        dtype=size.dtype,
        settings=options.settings,
    )
    return Assignment(
        f"millstream:{options.settings}", setup, size.vocab_size, (name,), options.scale, repeat, answer=""
    )


def _options() -> argparse.Namespace:
    parser = parser_of("queued", __doc__)
    parser.add_argument(
        "--models", "--model", nargs="+", default=["smol135m"],
        help=f"{', '.join(SHAPES)} (random weights), a folder with a checkpoint, or a hub id",
    )  # fmt: skip
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=["a", "c"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the workload's rows")
    parser.add_argument("--repeats", type=int, default=1, help="of either side; the fastest counts")
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--beside", choices=KINDS, help="what runs on the same cores, beside both sides")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--engine-threads", type=int, default=1)
    parser.add_argument("--settings", default="", help="of the engine on both sides: compile_model=on,…")
    parser.add_argument("--limit-s", type=float, default=600.0, help="for one turn of the engine alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
