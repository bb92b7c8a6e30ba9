"""`make bench`: the figures of this machine, one table after the other.

    python -m ops.bench                     this text
    python -m ops.bench default             what make bench measures: brain, front, engine, queued
    python -m ops.bench brain prefix        parts by name
    python -m ops.bench engine --repeats 3  one part with arguments of its own; --help shows them

Run it on a machine that does nothing else. ops/bench/README.md says what the parts measure and how to read
their tables.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

PARTS = {
    "brain": "scheduling alone",
    "front": "everything around the engine, which is a stand-in",
    "engine": "the engine beside others on the same workloads",
    "queued": "the same work through the queue and without it",
    "prefix": "a shared prefix under rising load, with and without sharing",
    "growth": "tokens/s and memory against rows, context, pool, queue and workers",
    "idle": "what of a step is not the model, and what of the cache is not tokens",
    "scheduling": "what the scheduler's choices are worth",
    "fairness": "how tenants share a batch",
    "attention": "attention over the paged cache on the CPU, native beside plain",
    "layers": "a model's forward without its attention: plain, packed, compiled",
    "shared": "attention that reads a common beginning once, on a GPU",
    "startup": "from the start of a process to ready",
    "soak": "everything for hours, with kills: nothing lost, nothing growing",
}
DEFAULT: tuple[tuple[str, ...], ...] = (
    ("brain",),
    ("front", "--steps-s", "200", "--short-jobs", "4000"),
    ("engine", "--scale", "0.5"),
    ("queued", "--models", "tiny14m", "smol135m", "--workloads", "a", "c"),
)


def main(arguments: Sequence[str]) -> int:
    runs = planned(arguments)
    if runs is None:
        print(__doc__)
        print("\n".join(f"    {name:<10} {what}" for name, what in PARTS.items()))
        return 0 if not arguments or arguments[0] in ("-h", "--help", "help") else 2
    for name, *options in runs:
        print(f"\n## {name}: {PARTS[name]}\n", flush=True)
        command = [sys.executable, "-W", "ignore", "-m", f"ops.bench.{name}", *options]
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


def planned(arguments: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Parts with their arguments; None where the arguments name none."""
    if list(arguments) == ["default"]:
        return list(DEFAULT)
    if arguments and all(name in PARTS for name in arguments):
        return [(name,) for name in arguments]
    if len(arguments) > 1 and arguments[0] in PARTS and arguments[1] not in PARTS:
        return [tuple(arguments)]
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
