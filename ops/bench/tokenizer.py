"""The tokenizer that the front's benchmark detokenizes with: the demo model's, fetched as the demo does."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.cli.demo_model import demo_model
from millstream_worker.engine.runner.checkpoint import resolve


def bench_tokenizer() -> Path:
    """The folder with its tokenizer.json."""

    def say(message: str) -> None:
        print(message, file=sys.stderr)

    return resolve(str(demo_model(say)), "", say).tokenizer_folder
