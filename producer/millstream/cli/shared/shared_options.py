"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.media.media_folder import PageFormat
from millstream.wire.state.durability import Durability

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="MILLSTREAM_REDIS_URL",
        help="The server of the queue. Without one, an embedded server runs for the command.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Without --redis-url: the worker's model (folder, GGUF file or hub id).",
        show_default="SmolLM2-135M",
    ),
]
Queue = Annotated[str, typer.Option(help="The queue.")]
DurabilityOf = Annotated[
    Durability,
    typer.Option(
        "--durability",
        help="Wait until the server's disk (aof) or replicas have the job.",
        rich_help_panel="Durability",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        help="Number of replicas for --durability; default: one for replicas, none for aof.",
        rich_help_panel="Durability",
    ),
]
DurabilityTimeout = Annotated[
    float,
    typer.Option(
        "--durability-timeout-s",
        help="Longest wait for the durability; a failure is reported.",
        rich_help_panel="Durability",
    ),
]
Input = Annotated[Path, typer.Argument(metavar="IN", help="JSONL in the OpenAI Batch input format.")]
LineSchema = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON schema for the answers of lines that have no format."),
]
Media = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Images of lines may be files below it, and pages: scan.pdf#page=3."),
]
PdfDpi = Annotated[int, typer.Option("--pdf-dpi", metavar="DPI", help="Of pages of PDF files.")]
PageFormatOf = Annotated[
    PageFormat, typer.Option("--page-format", help="Of the same; jpeg is smaller, and changes answers.")
]
StrictFields = Annotated[
    bool, typer.Option("--strict-fields", help="A field that nothing reads is an error; ends with 2.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobIds = Annotated[
    list[str], typer.Argument(metavar="ID…", help="The jobs: ids that `submit` printed, or your own.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job: the id that `submit` printed, or your own.")
]
