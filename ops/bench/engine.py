"""Engines side by side: the same random-weight checkpoint, the same workloads, the same run.

    python -m ops.bench.engine --shapes tiny14m smol135m --workloads a r b c

Every engine runs in a process of its own, one after the other, so that none takes another's cores or memory.
The bound is what the work takes at the memory bandwidth and the bf16 matrix rate measured in this run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from ops.bench import machine
from ops.bench.adapters import ADAPTERS, shaped_checkpoint
from ops.bench.machine import Limits
from ops.bench.shapes import SHAPES
from ops.bench.workloads import CPU_WORKLOADS, NAMES, Workload, make

from millstream_worker.engine_link.link import engine_environment


@dataclass(frozen=True, slots=True)
class Outcome:
    """One engine on one workload; `tokens_s` counts output tokens only."""

    tokens_s: float
    peak_mib: float
    problem: str = ""


def main() -> None:
    options = _options()
    if options.child:
        _child(options)
        return
    limits = machine.measure(options.threads)
    print(f"{machine.describe()}, {options.threads} threads, {limits}")
    for shape in options.shapes:
        shaped_checkpoint(shape)
        _print_head(shape, options.engines)
        for name in options.workloads:
            workload = make(name, SHAPES[shape]["vocab_size"], options.scale)
            outcomes = {engine: _run(engine, shape, name, options) for engine in options.engines}
            _print_row(workload, outcomes, bound_tokens_s(SHAPES[shape], workload, limits))


def bound_tokens_s(shape: dict[str, Any], workload: Workload, limits: Limits) -> float:
    """Output tokens/s of a machine that reads and multiplies at its measured rates and wastes nothing.

    Prefill: 2 FLOPs for each weight of the layers and each distinct prompt token. Decode: the larger of 2
    FLOPs for each weight and output token, and the bytes. These are all weights once for each step of the
    longest row, and 2 (keys, values) x layers x KV heads x head size x 2 bytes for each token of context
    that a step reads.
    """
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head, kv_heads = shape["head_dim"], shape["num_key_value_heads"]
    attention = hidden * head * (2 * shape["num_attention_heads"] + 2 * kv_heads)
    in_layers = layers * (attention + 3 * hidden * shape["intermediate_size"])
    weights = in_layers + hidden * shape["vocab_size"]
    context = sum(
        length * len(prompt) + length * (length - 1) // 2
        for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True)
    )
    prefill_s = 2 * in_layers * workload.distinct_prompt_tokens / limits.flops_s
    read_bytes = 2 * weights * max(workload.output_lengths) + 2 * 2 * layers * kv_heads * head * context
    decode_s = max(2 * weights * workload.output_tokens / limits.flops_s, read_bytes / limits.read_bytes_s)
    seconds: float = prefill_s + decode_s
    return workload.output_tokens / seconds


def _child(options: argparse.Namespace) -> None:
    shape, name = options.shapes[0], options.workloads[0]
    vocab = SHAPES[shape]["vocab_size"]
    most = make(name, vocab, options.scale)
    adapter = ADAPTERS[options.engines[0]](
        shaped_checkpoint(shape),
        device=options.device,
        threads=options.threads,
        kv_tokens=most.prompt_tokens + most.output_tokens,
    )
    adapter.run(make(name, vocab, 2 / len(make(name, vocab).prompts), seed=-1))  # two rows, to warm up
    work = [make(name, vocab, options.scale, seed) for seed in range(options.repeats)]
    tokens_s = max(workload.output_tokens / adapter.run(workload) for workload in work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"tokens_s": tokens_s, "peak_mib": peak}))


def _run(engine: str, shape: str, workload: str, options: argparse.Namespace) -> Outcome:
    command = [sys.executable, "-m", "ops.bench.engine", "--child", "--engines", engine, "--shapes", shape]
    command += ["--workloads", workload, "--scale", str(options.scale), "--repeats", str(options.repeats)]
    command += ["--device", options.device, "--threads", str(options.threads)]
    environment = dict(os.environ)
    if engine == "millstream":  # as the worker starts its engine process
        environment = engine_environment(environment, options.threads)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.limit_s, check=True, env=environment
        )
    except subprocess.TimeoutExpired:
        return Outcome(0.0, 0.0, f"over {options.limit_s:.0f} s")
    except subprocess.CalledProcessError as error:
        return Outcome(0.0, 0.0, (error.stderr.strip().splitlines() or ["failed"])[-1][:60])
    return Outcome(**json.loads(done.stdout.strip().splitlines()[-1]))


def _print_head(shape: str, engines: list[str]) -> None:
    print(f"\n### {shape}: output tokens/s (peak MiB)\n")
    names = [*engines, *(f"ours / {engine}" for engine in engines[1:]), "bound", "ours / bound"]
    print(f"| workload | {' | '.join(names)} |\n|---|{'---|' * len(names)}")


def _print_row(workload: Workload, outcomes: dict[str, Outcome], bound: float) -> None:
    cells = [o.problem or f"{o.tokens_s:,.0f} ({o.peak_mib:,.0f})" for o in outcomes.values()]
    ours, *peers = outcomes.values()
    cells += [f"{ours.tokens_s / peer.tokens_s:.2f}x" if peer.tokens_s else "–" for peer in peers]
    cells += [f"{bound:,.0f}", f"{ours.tokens_s / bound:.0%}"]
    print(f"| {workload.name.upper()} {workload.what} | {' | '.join(cells)} |", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny14m", "smol135m"])
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(CPU_WORKLOADS))
    parser.add_argument("--engines", nargs="+", choices=ADAPTERS, default=list(ADAPTERS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the workload's rows")
    parser.add_argument("--repeats", type=int, default=1, help="runs per engine; the fastest counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=900.0, help="an engine that takes longer is cut off")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
