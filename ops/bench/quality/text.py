"""Text as tokens: of Markdown, reStructuredText and plain text files, file after file in the order of their
names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ENDINGS = (".md", ".rst", ".txt")


def windows(tokenizer: Any, paths: Sequence[str], size: int, count: int) -> Iterator[Tensor]:
    """`count` windows of `size` tokens and the one that follows, [size + 1]. Raises SystemExit where the text
    is too short for them."""
    left = count
    pending: list[int] = []
    for file in _files(paths):
        pending += tokenizer.encode(file.read_text("utf-8", errors="replace"), add_special_tokens=False)
        while len(pending) > size and left > 0:
            yield torch.tensor(pending[: size + 1])
            del pending[:size]
            left -= 1
        if left <= 0:
            return
    raise SystemExit(f"the text is {left * size:,} tokens too short: give more, or ask for less")


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from (
            sorted(one for one in path.rglob("*") if one.suffix in _ENDINGS) if path.is_dir() else [path]
        )
