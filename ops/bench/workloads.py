"""The workloads every engine is timed on: prompts as random token ids, so that any random-weight model
serves, and output lengths. Always the same for a name, a vocabulary and a scale."""

from __future__ import annotations

import random
from dataclasses import dataclass

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    what: str
    prompts: Prompts
    output_lengths: list[int]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def shared_tokens(self) -> int:
        """How many tokens all prompts begin with; of a single prompt none are shared."""
        if len(self.prompts) == 1:
            return 0
        columns = enumerate(zip(*self.prompts, strict=False))
        shortest = min(map(len, self.prompts))
        return next((place for place, column in columns if len(set(column)) > 1), shortest)

    @property
    def distinct_prompt_tokens(self) -> int:
        """The prompts' tokens, what all of them begin with counted once."""
        return self.prompt_tokens - self.shared_tokens * (len(self.prompts) - 1)

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lengths)


#         rows  shared  own  output    (a pair is a range, drawn uniformly)
_SHAPES: dict[str, tuple[int, int, int | tuple[int, int], int | tuple[int, int]]] = {
    "decode": (256, 0, 128, 256),
    "document": (256, 0, 1024, 128),
    "shared": (1000, 200, 30, 50),
    "shareddoc": (200, 4000, 50, 64),
    "ragged": (512, 0, (32, 512), (16, 512)),
    "nano": (256, 0, (100, 1024), (100, 1024)),
    "a": (32, 0, 64, 128),
    "r": (32, 0, 64, (16, 256)),
    "b": (32, 0, 512, 64),
    "c": (64, 200, 30, 50),
    "single": (1, 0, 128, 256),
    "last": (256, 369, 1, 4),  # all but the last token of a prompt
    "128to128": (2048, 0, 128, 128),  # the lengths at which TensorRT-LLM's figures are published
    "1000to1000": (1024, 0, 1000, 1000),
}
CPU_WORKLOADS = ("a", "r", "b", "c")  # uniform, ragged outputs, documents, shared prefix
NAMES = tuple(_SHAPES)


def make(name: str, vocab: int, scale: float = 1.0, seed: int = 0) -> Workload:
    """The workload of that name over `vocab` tokens. `scale` changes its row count; another `seed` has other
    prompts, so that a second run finds nothing in a prefix cache. One seed's prompts begin alike in all
    workloads: an engine that keeps prefixes needs a salt, or an empty cache, between them."""
    rows, shared, own, output = _SHAPES[name]
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(10, min(vocab, 10_000)) for _ in range(count)]

    def length(shape: int | tuple[int, int]) -> int:
        return shape if isinstance(shape, int) else draw.randrange(shape[0], shape[1] + 1)

    count = max(1, int(rows * scale)) if rows > 1 else 1  # a single stream stays one
    head = ids(shared)
    prompts = [head + ids(length(own)) for _ in range(count)]
    what = f"{count} x ({f'{shared} shared + ' if shared else ''}{_shown(own)} -> {_shown(output)})"
    return Workload(name, what, prompts, [length(output) for _ in range(count)])


def _shown(shape: int | tuple[int, int]) -> str:
    return str(shape) if isinstance(shape, int) else f"{shape[0]}..{shape[1]}"
