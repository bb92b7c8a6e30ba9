"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job, as `submit` printed it.")]
