"""A shuffled file of documents x questions through one worker, whose pool holds few of the documents: lines
that begin alike sent together, beside the order of the file.

    python -m ops.bench shared_lines [--model tiny14m] [--documents 60 --questions 10 --tokens 1500 --pool 10]

Of each run: seconds, and the prompt tokens that were computed, beside those of computing each document once.
Then a file whose lines share nothing, in both orders; and CPU microseconds a line of the pass that finds the
order, over many lines (`--pass-lines`), without it and with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ops.bench import machine, plots
from ops.bench.command_line import add_engine, parsed, parser_of
from ops.bench.load import queue
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.size import ModelSize, size_of
from ops.bench.models.tokenizer import with_tokenizer
from ops.bench.plots import Curve, Panel

from millstream import AsyncClient, run_batch
from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.run.run_options import RunOptions

QUESTION = 20  # tokens
PASS_CHARACTERS = 1500  # of a line's prompt in the pass
ORDERS = {"together": False, "in the file's order": True}


def main() -> None:
    options = _options()
    print(machine.describe())
    plain = checkpoint(options.model, options.device)
    with tempfile.TemporaryDirectory(prefix="millstream-shared-") as scratch:
        folder = Path(scratch)
        model = with_tokenizer(plain, folder / "model")
        print("| lines | order | s | prompt tokens computed | of each document once |\n|---|---|---|---|---|")
        asyncio.run(_runs(options, folder, [*_flags(options, size_of(plain)), "--model", str(model)]))
        print("\n| pass over | us a line |\n|---|---|")
        for name, seconds in _passes(folder, options.pass_lines).items():
            print(
                f"| {options.pass_lines:,} lines, {name} | {seconds / options.pass_lines * 1e6:.1f} |",
                flush=True,
            )


async def _runs(options: argparse.Namespace, folder: Path, flags: Sequence[str]) -> None:
    draws = random.Random(7)
    curves = []
    async with queue.worker(*flags) as client:
        await _timed(client, folder, _lines(options, draws, questions=1), in_order=True)  # warm
        for questions in (options.questions, 1):
            for name, in_order in ORDERS.items():
                lines = _lines(options, draws, questions)  # others each time: nothing is cached
                seconds, curve = await _timed(client, folder, lines, in_order=in_order)
                computed = int(curve[-1][1])
                if questions > 1:
                    times, counts = zip(*curve, strict=True)
                    curves.append(Curve(f"sent {name}", times, counts))
                once = options.documents * options.tokens + len(lines) * QUESTION
                kind = f"{options.documents} x {questions}"
                print(
                    f"| {kind} | {name} | {seconds:.1f} | {computed:,} | {computed / once:.2f} |", flush=True
                )
    if not curves:
        return
    panel = Panel("Prompt tokens computed", "seconds", "tokens", curves)
    title = f"{options.documents} documents x {options.questions} questions"
    plots.draw(plots.FOLDER / "shared_lines.png", title, [panel], plots.caption("shared_lines"))


async def _timed(
    client: AsyncClient, folder: Path, lines: Iterable[Any], *, in_order: bool
) -> tuple[float, list[tuple[float, float]]]:
    """Seconds of a run; and the prompt tokens that it had computed for the rows that were there, by its
    seconds."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source = Path(place) / "in.jsonl"
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        out = source.with_name("out.jsonl")
        begun, sizes = time.perf_counter(), [(0.0, 0)]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.25)
                sizes.append((time.perf_counter() - begun, out.stat().st_size if out.exists() else 0))

        watching = asyncio.create_task(watch())
        summary = await run_batch(client, source, out, queue=queue.QUEUE, in_order=in_order)
        watching.cancel()
        assert not summary.failed, summary.causes
        seconds = time.perf_counter() - begun
        return seconds, _computed(out.read_bytes(), [*sizes, (seconds, out.stat().st_size)])


def _computed(rows: bytes, sizes: Iterable[tuple[float, int]]) -> list[tuple[float, float]]:
    ends, totals = [0], [0]
    for row in rows.splitlines(keepends=True):
        usage = json.loads(row)["response"]["body"]["usage"]
        ends.append(ends[-1] + len(row))
        totals.append(totals[-1] + usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
    return [(at, float(totals[bisect_right(ends, size) - 1])) for at, size in sizes]


def _lines(options: argparse.Namespace, draws: random.Random, questions: int) -> list[dict[str, Any]]:
    """Each question about each document, as token ids, shuffled."""

    def tokens(count: int) -> list[int]:
        return [draws.randrange(100, 1000) for _ in range(count)]

    documents = [tokens(options.tokens) for _ in range(options.documents)]
    prompts = [document + tokens(QUESTION) for document in documents for _ in range(questions)]
    draws.shuffle(prompts)
    sampling = {"max_tokens": options.output, "ignore_eos": True, "temperature": 0}
    return [
        {"custom_id": str(number), "url": "/v1/completions", "body": {"prompt": prompt, **sampling}}
        for number, prompt in enumerate(prompts)
    ]


def _flags(options: argparse.Namespace, size: ModelSize) -> list[str]:
    """A pool of so many documents with their questions and answers."""
    tokens = options.pool * (options.tokens + QUESTION + options.output + 16)
    flags = ["--device", options.device, "--compile-model", options.compile_model]
    flags += ["--threads", str(options.threads), "--kv-memory", str(tokens * size.kv_token_bytes)]
    return [*flags, "--max-rows", str(options.rows), "--speculate", "off"]


def _passes(folder: Path, count: int) -> dict[str, float]:
    """CPU seconds of the comparison of IN with OUT, whose lines begin alike by tens or not at all."""
    times: dict[str, float] = {}
    for name, alike in (("ten begin alike", 10), ("none do", 1)):
        source = folder / "many.jsonl"
        _write_many(source, count, alike)
        for way, in_order in (("without the order", True), ("with it", False)):
            with tempfile.TemporaryDirectory(dir=folder) as place, Journal(Path(place) / "out") as journal:
                begun = time.process_time()
                BatchSession(source, journal, RunOptions(in_order=in_order)).compare()
                times[f"{name}, {way}"] = time.process_time() - begun
    return times


def _write_many(source: Path, count: int, alike: int) -> None:
    draws = random.Random(7)
    groups = max(1, count // alike)
    with source.open("w") as file:
        for number in range(count):
            group = draws.randrange(groups) if alike > 1 else number
            text = f"{group} {'some words of a document ' * (PASS_CHARACTERS // 25)} {number}"
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
            line = {"custom_id": f"line-{number}", "url": "/v1/chat/completions", "body": body}
            file.write(f"{json.dumps(line)}\n")


def _options() -> argparse.Namespace:
    parser = parser_of("shared_lines", __doc__)
    parser.add_argument("--model", default="tiny14m", help="a shape's name, a folder or a hub id")
    numbers = (
        ("documents", 60), ("questions", 10), ("tokens", 1500), ("output", 16), ("pool", 10), ("rows", 8),
        ("pass-lines", 1_000_000),
    )  # fmt: skip
    for name, default in numbers:
        parser.add_argument(f"--{name}", type=int, default=default)
    add_engine(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
