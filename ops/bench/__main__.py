"""`make bench`: the figures of this machine, one table after the other.

    python -m ops.bench                     this text
    python -m ops.bench default             what make bench measures: brain, front, engine, queued
    python -m ops.bench brain prefix        parts by name
    python -m ops.bench engine --repeats 3  one part with arguments of its own; --help shows them

Run it on a machine that does nothing else. ops/bench/README.md says what the parts measure and how to read
their tables.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream_worker.engine_link.link import engine_environment


@dataclass(frozen=True, slots=True)
class Part:
    module: str  # below ops.bench
    what: str
    computes: bool = False  # an engine in its own process: it gets the environment of an engine's


PARTS: dict[str, Part] = {
    "brain": Part("pieces.brain", "scheduling alone"),
    "front": Part("pieces.front", "everything around the engine, which is a stand-in"),
    "engine": Part("engines.contest", "the engine beside others on the same workloads"),
    "queued": Part("queued.comparison", "the same work through the queue and without it"),
    "gateway": Part("queued.gateway", "what the HTTP gateway adds to TTFT, its events/s, its idle streams"),
    "lines": Part("queued.batch_lines", "many short lines of a batch file through both doors"),
    "fleet": Part("queued.fleet", "what a submit and a take cost the server, with ever more workers"),
    "shared_lines": Part("queued.shared_lines", "a file of documents x questions, by groups and as it lies"),
    "prefix": Part("load.prefix", "a shared prefix under rising load, with and without sharing", True),
    "growth": Part(
        "growth.experiment", "tokens/s and memory against rows, context, pool, queue and workers", True
    ),
    "idle": Part("pieces.idle", "what of a step is not the model, and what of the cache is not tokens", True),
    "attention": Part("pieces.attention", "attention over the paged cache on the CPU, native beside plain"),
    "layers": Part("pieces.layers", "a model's forward without its attention: plain, as loaded, compiled"),
    "replay": Part("pieces.replay", "steps whose calls are made by Python, and replayed", True),
    "context": Part(
        "pieces.context", "steps of rows with long contexts, keys and values in INT8 or not", True
    ),
    "reading": Part("pieces.reading", "a quantised checkpoint into the model's type: rate and peak memory"),
    "weights": Part("pieces.weights", "steps by the format of the weights", True),
    "hybrid": Part("pieces.hybrid", "recurrent states: what checkpoints save, what states cost a step", True),
    "pages": Part("pieces.pages", "images of pages, beside transformers; what they cost chats", True),
    "page_queue": Part("queued.page_queue", "many pages through a queue: memory, refusals, text beside them"),
    "grammars": Part("grammars.part", "what grammars cost a step, of one schema and of many", True),
    "beside": Part("grammars.beside", "answers by a schema, here and in vLLM"),
    "speculation": Part("speculation.part", "what draft tokens gain on text", True),
    "schemas": Part("schemas.part", "schemas that are accepted, and answers that validate", True),
    "shared": Part("pieces.shared", "attention that reads a common beginning once, on a GPU"),
    "quality": Part(
        "quality.part", "what quantised weights, keys and values cost on text, and needles found"
    ),
    "startup": Part("pieces.startup", "from the start of a process to ready"),
    "soak": Part("soak.run", "everything for hours, with kills: nothing lost, nothing growing"),
}
DEFAULT: tuple[tuple[str, ...], ...] = (
    ("brain",),
    ("front", "--steps-s", "200", "--short-jobs", "4000"),
    ("engine", "--scale", "0.5"),
    ("queued", "--models", "tiny14m", "smol135m", "--workloads", "a", "c"),
)


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """The part's exit status. When it is interrupted it ends the workers and servers that it has started, and
    is waited for: subprocess.run would kill it a moment later, and leave those behind. It has a session of
    its own: terminals and `timeout` signal all of a group, and it shall be interrupted, once."""
    signal.signal(signal.SIGINT, lambda *_: None)  # until there is a part; SIG_IGN would be inherited
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
    return process.wait()


def main(
    arguments: Sequence[str], run: Callable[[Sequence[str], Mapping[str, str] | None], int] = run
) -> int:
    runs = planned(arguments)
    if runs is None:
        print(__doc__)
        print("\n".join(f"    {name:<10} {part.what}" for name, part in PARTS.items()))
        return 0 if not arguments or arguments[0] in ("-h", "--help", "help") else 2
    for name, *options in runs:
        part = PARTS[name]
        print(f"\n## {name}: {part.what}\n", flush=True)
        command = [sys.executable, "-W", "ignore", "-m", f"ops.bench.{part.module}", *options]
        environment = engine_environment(os.environ, 0) if part.computes else None
        if status := run(command, environment):
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
