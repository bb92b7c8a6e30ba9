"""A tokenizer with as many tokens as a shape has logits: the demo model's, cut or grown."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from ops.bench.models.tokenizer import bench_tokenizer


def sized_tokenizer(model: Path, folder: Path, source: Path | None = None) -> Path:
    """The model's files in `folder`, with a tokenizer of its size; the model itself where it has one."""
    if (model / "tokenizer.json").exists():
        return model
    source = source or bench_tokenizer()
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    folder.mkdir(parents=True)
    for file in (*model.iterdir(), *source.glob("tokenizer*")):
        (folder / file.name).symlink_to(file.absolute())
    described = json.loads((source / "tokenizer.json").read_text())
    _resize(described["model"], size)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(described))
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
