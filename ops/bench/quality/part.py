"""What quantised weights, or keys and values in INT8, cost on text: perplexity, KL divergence and the same
most likely token, beside the same model with its weights dequantised to float32.

    python -m ops.bench quality --model model.gguf --text ops README.md --tokens 20000
    python -m ops.bench quality --model SOME/FOLDER --weights int8 --text /usr/share/doc
    python -m ops.bench quality --model SOME/FOLDER --kv-dtype int8 --text ops --context 4000 --from 3500

    python -m ops.bench quality --model SOME/FOLDER --kv-dtype int8 --text ops --needles 50 --distances 4000

Text is what the files hold (text.py), in windows of `--context` tokens. Nothing of it is kept. With
`--kv-dtype` attention is the worker's own over a KV cache, and the weights are the reference's. With
`--needles` so many facts are asked for after each of the distances (needles.py), instead of comparing what
models make of the text.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ops.bench.machine import describe
from ops.bench.quality.models import Logits, cached, without_cache
from ops.bench.quality.needles import A_WINDOW, ROOM, haystacks
from ops.bench.quality.text import windows
from torch import Tensor
from transformers import AutoTokenizer

from millstream_worker.engine.runner.checkpoint.checkpoint import resolve

_AT_ONCE = 128  # positions whose logits are compared at a time


@dataclass(slots=True)
class Difference:
    """Sums over positions, each of which predicts the next token."""

    positions: int = 0
    loss: float = 0.0  # of the text, in nats
    reference_loss: float = 0.0
    divergence: float = 0.0  # of the answer from the reference
    same: int = 0  # most likely tokens

    def add(self, logits: Tensor, reference: Tensor, following: Tensor) -> None:
        """Logits [positions, vocabulary] of both, and the tokens [positions] that the text has next."""
        for first in range(0, len(following), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            got, want = logits[some].log_softmax(-1), reference[some].log_softmax(-1)
            places = following[some, None]
            self.loss -= float(got.gather(1, places).sum())
            self.reference_loss -= float(want.gather(1, places).sum())
            self.divergence += float((want.exp() * (want - got)).sum())
            self.same += int((got.argmax(-1) == want.argmax(-1)).sum())
        self.positions += len(following)

    def line(self) -> str:
        perplexity, base = (math.exp(sum_ / self.positions) for sum_ in (self.loss, self.reference_loss))
        return (
            f"perplexity {perplexity:8.3f} ({perplexity / base - 1:+.2%} of {base:.3f})   "
            f"KL {self.divergence / self.positions:.5f}   same top token {self.same / self.positions:.2%}   "
            f"{self.positions:,} positions"
        )


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    checkpoint = resolve(options.model, options.cache, print)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.tokenizer_folder)
    print(f"{describe()}\n{checkpoint.name}, {', '.join(options.text)}")
    folder = str(checkpoint.folder)
    reference = without_cache(folder, "dequantized")
    longest = max(options.distances) + ROOM if options.needles else options.context
    models: dict[str, Logits] = (
        {f"KV {kv_dtype}": cached(folder, kv_dtype, longest) for kv_dtype in options.kv_dtype}
        if options.kv_dtype
        else {weights: without_cache(folder, weights) for weights in options.weights}
    )
    if options.needles:
        find(tokenizer, {"reference": reference} | models, options)
    else:
        compare(tokenizer, reference, models, options)


def compare(
    tokenizer: Any, reference: Logits, models: Mapping[str, Logits], options: argparse.Namespace
) -> dict[str, Difference]:
    """On windows of the text, told as it goes on."""
    differences = {name: Difference() for name in models}
    count = -(-options.tokens // options.context)
    predicted = options.context - options.first
    for number, window in enumerate(windows(tokenizer, options.text, options.context, count), 1):
        seen, following = window[:-1], window[1:][options.first :]
        want = reference(seen, predicted)
        for name, difference in differences.items():
            difference.add(models[name](seen, predicted), want, following)
        if number % 10 == 0 or number == count:
            for name, difference in differences.items():
                print(f"{name:>16}  {difference.line()}", flush=True)
    return differences


def find(
    tokenizer: Any, models: Mapping[str, Logits], options: argparse.Namespace
) -> dict[int, dict[str, int]]:
    """Needles found, by distance and model."""
    found: dict[int, dict[str, int]] = {}
    for distance in options.distances:
        texts = windows(tokenizer, options.text, distance + ROOM, -(-options.needles // A_WINDOW))
        counts = found[distance] = dict.fromkeys(models, 0)
        for haystack in haystacks(tokenizer, texts, distance, options.needles):
            for name, logits in models.items():
                counts[name] += haystack.found(logits)
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        print(f"needles found of {options.needles} after {distance:,} tokens: {told}", flush=True)
    return found


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m ops.bench quality", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", required=True, help="a folder, a GGUF file or a hub id")
    parser.add_argument("--weights", nargs="+", choices=("auto", "int8", "fp8"), default=["auto"])
    parser.add_argument("--kv-dtype", nargs="+", choices=("auto", "int8"), default=[])
    parser.add_argument("--text", nargs="+", required=True, help="files and folders")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="first position of a window to count"
    )
    parser.add_argument("--needles", type=int, default=0, help="facts to ask for; 0: compare text")
    parser.add_argument(
        "--distances", type=int, nargs="+", default=[2000, 4000], help="of needles, in tokens"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache", default="", help="folder of converted GGUF files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
