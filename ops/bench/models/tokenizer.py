"""The tokenizer that benchmarks of the front detokenize with: the demo model's, fetched as the demo does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from millstream.cli.embedded.demo_model import demo_model
from millstream_worker.engine.runner.checkpoint.checkpoint import resolve


def bench_tokenizer() -> Path:
    """The folder with its tokenizer.json."""

    def say(message: str) -> None:
        print(message, file=sys.stderr)

    return resolve(str(demo_model(say)), "", say).tokenizer_folder


def with_tokenizer(model: Path, folder: Path, other: Callable[[], Path] = bench_tokenizer) -> Path:
    """The model itself where it has a tokenizer; else its files in `folder`, with those of `other`."""
    if (model / "tokenizer.json").exists():
        return model
    folder.mkdir(parents=True)
    for file in model.iterdir():
        (folder / file.name).symlink_to(file.absolute())
    for file in other().glob("tokenizer*"):
        (folder / file.name).symlink_to(file.absolute())
    return folder
