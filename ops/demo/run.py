"""The demo: a file of documents through `batch run`, the records among the answers as objects, then one
document streamed to the terminal.

    python ops/demo/run.py              without --redis-url, on an embedded server and the demo model

Writes out/results.jsonl and out/results.errors.jsonl; every run computes everything anew.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.run.run_options import RunOptions
from millstream.cli.batch.batch_run import answer, report
from millstream.cli.display.terminal import answers, say
from millstream.cli.display.transcript import Follower
from millstream.cli.embedded.stack import Stack, choose_model, open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import Model, RedisUrl
from millstream.client.async_client import AsyncClient
from millstream.wire.keys import Lane

DOCUMENTS = Path(__file__).with_name("documents.jsonl")
LETTER = Path(__file__).with_name("letter.txt")
SYSTEM = (
    "Provide a concise, objective summary of the input text in up to three sentences, focusing on key "
    "actions and intentions without using second or third person pronouns."
)


class Record(BaseModel):
    """What the schema of the documents' records says."""

    model_config = ConfigDict(strict=True, extra="forbid")

    sender: Annotated[str, Field(min_length=1, max_length=60)]
    euros: Annotated[float, Field(ge=0)] | None


def main(
    redis_url: RedisUrl = None,
    model: Model = None,
    out: Annotated[Path, typer.Option(help="Where the answers go.")] = Path("out/results.jsonl"),
) -> None:
    """Show the whole way of a job on real documents."""
    with reported(False, lambda: "the demo was interrupted"):
        local = choose_model(redis_url or None, model)
        with open_stack(redis_url or None, local) as stack:  # one demo at a time, so first of all
            out.parent.mkdir(parents=True, exist_ok=True)
            out.unlink(missing_ok=True)  # a new run: the last one's answers are not taken up again
            with Journal(out, local.name if local else None) as journal:
                session = BatchSession(DOCUMENTS, journal, RunOptions())
                session.compare()
                say(f"1. {from_here(DOCUMENTS)} through `millstream batch run`")
                summary = run_async(answer(stack, session))
            report(summary, journal, None, as_json=False)
            show_records(out)
            say(f"2. {from_here(LETTER)}: summarised, and streamed as `millstream submit --stream` does")
            run_async(stream_letter(stack, LETTER.read_text(encoding="utf-8").strip()))
    if local is not None and model is None:
        answers.print(
            "\nA model of 135M parameters shows the machinery; it is no measure of answers. For a real one:\n"
            f"  {from_here(Path(sys.executable).with_name('millstream'))} batch run {from_here(DOCUMENTS)} "
            "-o out/real.jsonl --model Qwen/Qwen3-0.6B"
        )


def from_here(path: Path) -> str:
    """As it would be typed."""
    return os.path.relpath(path)


def show_records(out: Path) -> None:
    """How many of the records are objects by their schema; the last one with an amount."""
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    texts = [
        row["response"]["body"]["choices"][0]["text"]
        for row in rows
        if row["custom_id"].startswith("record-")
    ]
    records = [record for text in texts if (record := record_of(text)) is not None]
    answers.print(f"records   {len(records)} of {len(texts)} fit their JSON schema, such as")
    for record in sorted(records, key=lambda record: record.euros or 0)[-1:]:
        answers.print(f"          {record!r}")


def record_of(text: str) -> Record | None:
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        return None


async def stream_letter(stack: Stack, letter: str) -> None:
    async with AsyncClient(stack.url) as client:
        job = await client.submit(
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": letter}],
            max_tokens=120,
            temperature=0,
            lane=Lane.INTERACTIVE,
            stream=True,
        )
        await stack.guard(Follower(job.id).follow(client))


if __name__ == "__main__":
    typer.run(main)
