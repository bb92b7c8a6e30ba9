"""What quantised weights cost on text: perplexity, KL divergence and the same most likely token, beside the
same model with its weights dequantised to float32.

    python -m ops.bench quality --model model.gguf --text ops README.md --tokens 20000
    python -m ops.bench quality --model SOME/FOLDER --weights int8 --text /usr/share/doc

Text is what Markdown, reStructuredText and plain text files hold, file after file in the order of their
names, in windows of `--context` tokens. Nothing of it is kept.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from ops.bench.machine import describe
from torch import Tensor
from transformers import AutoTokenizer

from millstream_worker.engine.runner.checkpoint.checkpoint import resolve
from millstream_worker.engine.runner.model.load import load_model

_ENDINGS = (".md", ".rst", ".txt")
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


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    checkpoint = resolve(options.model, options.cache, print)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.tokenizer_folder)
    print(
        f"{describe()}\n{checkpoint.name}, windows of {options.context} tokens of {', '.join(options.text)}"
    )
    windows = list(_windows(tokenizer, options))
    models = {}
    for weights in ("dequantized", *options.weights):
        loaded = load_model(
            str(checkpoint.folder), dtype=torch.float32, device=torch.device("cpu"), weights=weights
        )
        loaded.model.set_attn_implementation("sdpa")  # without a cache
        models[weights] = loaded
    differences = {weights: Difference() for weights in options.weights}
    for number, window in enumerate(windows, 1):
        reference = _logits(models["dequantized"].model, window)
        for weights, difference in differences.items():
            difference.add(_logits(models[weights].model, window), reference, window[1:])
        if number % 10 == 0 or number == len(windows):
            for weights, difference in differences.items():
                print(f"{models[weights].weights:>16}  {difference.line()}", flush=True)


@torch.inference_mode()
def _logits(model: torch.nn.Module, window: Tensor) -> Tensor:
    """[tokens - 1, vocabulary]"""
    logits: Tensor = model(input_ids=window[None, :-1], use_cache=False).logits[0]
    return logits


def _windows(tokenizer: AutoTokenizer, options: argparse.Namespace) -> Iterator[Tensor]:
    left = options.tokens
    pending: list[int] = []
    for file in _files(options.text):
        pending += tokenizer.encode(file.read_text("utf-8", errors="replace"))
        while len(pending) > options.context and left > 0:
            yield torch.tensor(pending[: options.context + 1])
            del pending[: options.context]
            left -= options.context
        if left <= 0:
            return
    raise SystemExit(f"the text is {left:,} tokens too short: give more, or lower --tokens")


def _files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from (
            sorted(one for one in path.rglob("*") if one.suffix in _ENDINGS) if path.is_dir() else [path]
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m ops.bench quality", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", required=True, help="a folder, a GGUF file or a hub id")
    parser.add_argument("--weights", nargs="+", choices=("auto", "int8"), default=["auto"])
    parser.add_argument("--text", nargs="+", required=True, help="files and folders")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache", default="", help="folder of converted GGUF files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
