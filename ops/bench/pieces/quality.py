"""What quantised weights, or keys and values in INT8, cost on text: perplexity, KL divergence and the same
most likely token, beside the same model with its weights dequantised to float32.

    python -m ops.bench quality --model model.gguf --text ops README.md --tokens 20000
    python -m ops.bench quality --model SOME/FOLDER --weights int8 --text /usr/share/doc
    python -m ops.bench quality --model SOME/FOLDER --kv-dtype int8 --text ops --context 4000 --from 3500

Text is what Markdown, reStructuredText and plain text files hold, file after file in the order of their
names, in windows of `--context` tokens. Nothing of it is kept. With `--kv-dtype` attention is the worker's
own over a KV cache, and the weights are the reference's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ops.bench.machine import describe
from torch import Tensor
from transformers import AutoTokenizer

from millstream_worker.engine.brain.batch.plan import packed_plan
from millstream_worker.engine.runner.checkpoint.checkpoint import resolve
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import connect, load_model

_ENDINGS = (".md", ".rst", ".txt")
_BLOCK = 16
Logits = Callable[[Tensor], Tensor]  # of a window: [tokens - 1, vocabulary]
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
    folder = str(checkpoint.folder)
    reference = _without_cache(folder, "dequantized")
    models = (
        {f"KV {kv_dtype}": _cached(folder, kv_dtype, options.context) for kv_dtype in options.kv_dtype}
        if options.kv_dtype
        else {weights: _without_cache(folder, weights) for weights in options.weights}
    )
    differences = {name: Difference() for name in models}
    counted = slice(options.first, None)
    for number, window in enumerate(windows, 1):
        want = reference(window)[counted]
        for name, difference in differences.items():
            difference.add(models[name](window)[counted], want, window[1:][counted])
        if number % 10 == 0 or number == len(windows):
            for name, difference in differences.items():
                print(f"{name:>16}  {difference.line()}", flush=True)


def _without_cache(folder: str, weights: str) -> Logits:
    """A model in float32 with transformers' own attention."""
    loaded = load_model(folder, dtype=torch.float32, device=torch.device("cpu"), weights=weights)
    loaded.model.set_attn_implementation("sdpa")
    return partial(_logits, loaded.model)


def _cached(folder: str, kv_dtype: str, tokens: int) -> Logits:
    """A model in float32 with our attention over a KV cache, for windows of so many tokens."""
    loaded = load_model(
        folder, dtype=torch.float32, device=torch.device("cpu"), weights="dequantized", kv_dtype=kv_dtype
    )
    blocks = -(-tokens // _BLOCK)
    storage = KVStorage(loaded.layer_specs, blocks, _BLOCK, torch.float32, torch.device("cpu"))
    backend = loaded.attend_over(storage)
    connect(loaded, backend, lambda: None)
    groups = 1 + max(layer.group for layer in loaded.layer_specs)
    plan = packed_plan([tokens], [tokens], np.arange(blocks, dtype=np.int32)[None], _BLOCK)
    plan = replace(plan, block_tables=plan.block_tables * groups, slot_mapping=plan.slot_mapping * groups)

    def logits(window: Tensor) -> Tensor:
        backend.begin(plan)
        return _logits(loaded.model, window)

    return logits


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
    parser.add_argument("--kv-dtype", nargs="+", choices=("auto", "int8"), default=[])
    parser.add_argument("--text", nargs="+", required=True, help="files and folders")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="first position of a window to count"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache", default="", help="folder of converted GGUF files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
