"""The tokenizer of models that have none: the demo model's, fetched as the demo does."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from millstream.cli.embedded.demo_model import demo_model
from millstream_worker.engine.runner.checkpoint.checkpoint import resolve


def bench_tokenizer() -> Path:
    """The folder with its tokenizer.json."""

    def say(message: str) -> None:
        print(message, file=sys.stderr)

    return resolve(str(demo_model(say)), "", say).tokenizer_folder


def with_tokenizer(model: Path, folder: Path) -> Path:
    """The model itself where it has a tokenizer; else its files in `folder`, with the demo model's."""
    if (model / "tokenizer.json").exists():
        return model
    folder.mkdir(parents=True)
    for file in (*model.iterdir(), *bench_tokenizer().glob("tokenizer*")):
        (folder / file.name).symlink_to(file.absolute())
    return folder


def sized_tokenizer(model: Path, folder: Path) -> Path:
    """As `with_tokenizer`, with as many tokens as the model has logits: the demo model's, cut or grown."""
    if with_tokenizer(model, folder) == model:
        return model
    tokenizer = folder / "tokenizer.json"
    described = json.loads(tokenizer.read_text())
    _resize(described["model"], json.loads((model / "config.json").read_text())["vocab_size"])
    tokenizer.unlink()  # a link
    tokenizer.write_text(json.dumps(described))
    return folder


def _resize(model: dict[str, Any], size: int) -> None:
    """The vocabulary of a BPE model: its last merges go, or made-up words come."""
    vocab, merges = model["vocab"], model["merges"]
    if len(vocab) >= size:
        model["vocab"] = {token: id for token, id in vocab.items() if id < size}
        model["merges"] = [pair for pair in merges if "".join(pair) in model["vocab"]]
        return
    draw = random.Random(0)
    words = [token for token in vocab if token.isascii() and token.isalpha() and len(token) > 2]
    while len(vocab) < size:
        pair = draw.sample(words, 2)
        token = "".join(pair)
        if token not in vocab:
            vocab[token] = len(vocab)
            merges.append(pair)
