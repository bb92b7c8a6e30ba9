"""How long `batch run` takes over a file with equal lines: computed once, and with `--no-reuse`, in turns.

    python -m ops.bench reuse [--lines 200] [--distinct 100] [--words 10] [--max-tokens 128] [--turns 2]

The demo model, on an embedded server. Each run has prompts that no prefix cache has seen, and its equal lines
in random places. The seconds are the summary's, from the first submission to the last row. The limit is the
share of distinct lines; the worker's prefix cache spares most of the equal prompts with `--no-reuse`, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from random import Random

from ops.bench import machine

from millstream import AsyncClient, BatchSummary
from millstream.batch.run_batch import run_batch
from millstream.cli.embedded.stack import Stack, choose_model, open_stack

WORDS = Path("README.md").read_text("utf-8").split()


def write_lines(path: Path, options: argparse.Namespace, seed: int) -> None:
    chance = Random(seed)
    prompts = [_prompt(chance, options.words) for _ in range(options.distinct)]
    prompts += chance.choices(prompts, k=options.lines - options.distinct)
    chance.shuffle(prompts)
    fixed = {"max_tokens": options.max_tokens, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": f"{place}", "url": "/v1/completions", "body": {"prompt": prompt, **fixed}}
        for place, prompt in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _prompt(chance: Random, words: int) -> str:
    """Not even its beginning is another one's."""
    return " ".join([str(chance.random()), *chance.choices(WORDS, k=words)])


async def run(
    stack: Stack, folder: Path, options: argparse.Namespace, seed: int, *, reuse: bool
) -> BatchSummary:
    source, out = folder / f"{seed}.in.jsonl", folder / f"{seed}.jsonl"
    write_lines(source, options, seed)
    async with AsyncClient(stack.url) as client:
        summary = await stack.guard(run_batch(client, source, out, reuse=reuse))
    assert summary.completed == options.lines, summary.causes
    assert summary.output_tokens == options.max_tokens * (summary.completed - summary.reused)
    return summary


async def measure(stack: Stack, folder: Path, options: argparse.Namespace) -> None:
    await stack.guard(stack.worker_ready())
    warm = {"lines": 64, "distinct": 64, "max_tokens": 8}
    await run(stack, folder, argparse.Namespace(**vars(options) | warm), 0, reuse=True)
    print("| computed once | of these reused | --no-reuse | ratio | limit |\n|---|---|---|---|---|")
    for turn in range(options.turns):
        ways = (True, False) if turn % 2 == 0 else (False, True)  # neither is always the first
        runs = {reuse: await run(stack, folder, options, 1 + 2 * turn + reuse, reuse=reuse) for reuse in ways}
        once, apart = runs[True], runs[False]
        cells = [f"{once.seconds:.1f} s", f"{once.reused}", f"{apart.seconds:.1f} s"]
        cells += [f"{once.seconds / apart.seconds:.2f}x", f"{options.distinct / options.lines:.2f}x"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m ops.bench reuse", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="a folder, a file or a hub id")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--distinct", type=int, default=100)
    parser.add_argument("--words", type=int, default=10, help="of a prompt")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    print(machine.describe(), flush=True)
    local = choose_model(None, options.model, print)
    with tempfile.TemporaryDirectory(prefix="reuse-") as name:
        os.environ.setdefault("MILLSTREAM_COMPILE_MODEL", "on")  # and not in the middle of a run
        os.environ["MILLSTREAM_HOME"] = name  # its own server, whatever other commands run
        with open_stack(None, local, say=print) as stack:
            asyncio.run(measure(stack, Path(name), options))


if __name__ == "__main__":
    main()
