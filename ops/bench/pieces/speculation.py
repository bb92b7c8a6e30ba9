"""What draft tokens gain on text: SmolLM2-135M-Instruct copies and extracts, without drafts, with all that
are likely, and with those that pay.

    python -m ops.bench speculation [--rows 1 8 32 64] [--pairs 3]

The three engines take turns on the same prompts, which no turn finds in the cache. A pair is a turn with and
a turn without drafts; the factor is the median of the pairs' rates. Rows that repeat 16 tokens three times
are left out beforehand: a model that loops accepts every draft.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ops.bench import plots
from ops.bench.plots import Row
from transformers import AutoTokenizer

from millstream.cli.embedded.demo_model import demo_model
from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

MODES = ("off", "always", "auto")
DOCUMENTS = Path(__file__).parents[2] / "demo" / "documents.jsonl"
COPY = "Repeat the following text word by word.\n\n"
EXTRACT = "List each name, date and number in the following text, one per line.\n\n"
_LOOP, _TIMES = 16, 3  # tokens, and how often they come

Prompt = tuple[int, ...]


@dataclass(slots=True)
class Turn:
    seconds: float
    outputs: list[list[int]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return sum(map(len, self.outputs)) / self.seconds


class Turns:
    """An engine; each turn has a salt of its own."""

    def __init__(self, mode: str, threads: int) -> None:
        config = EngineConfig(
            str(demo_model(print)),
            device="cpu",
            threads=threads,
            kv_memory="1GiB",
            compile_model="on",
            speculate=mode,
        )
        self._engine: Engine[Any]
        self._engine, self.info = build(config, lambda message: None)
        self._turns = count()

    def run(self, prompts: list[Prompt], tokens: int) -> Turn:
        engine, salt = self._engine, str(next(self._turns))
        outputs: list[list[int]] = [[] for _ in prompts]
        before, start = engine.report().stats, time.perf_counter()
        for handle, prompt in enumerate(prompts):
            sampling = SamplingSpec(temperature=0.0, end_ids=self.info.eos_ids)
            assert engine.add(EngineRequest(handle, prompt, tokens, sampling, salt=salt)) is None
        while not engine.idle:
            step = engine.step()
            assert step is not None
            for handle, token in zip(step.handles, step.tokens, strict=True):
                outputs[handle].append(token)
        seconds, after = time.perf_counter() - start, engine.report().stats
        return Turn(
            seconds,
            outputs,
            after.drafted_total - before.drafted_total,
            after.accepted_total - before.accepted_total,
        )


def prompts_of(tokenizer: Any, task: str) -> list[Prompt]:
    """One for each of the demo's documents."""
    bodies = [json.loads(line)["body"] for line in DOCUMENTS.read_text("utf-8").splitlines()]
    prompts = []
    for body in bodies:
        message = {"role": "user", "content": task + body["prompt"]}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        prompts.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    return prompts


def loops(output: list[int]) -> bool:
    pieces = Counter(tuple(output[start : start + _LOOP]) for start in range(len(output) - _LOOP + 1))
    return max(pieces.values(), default=0) >= _TIMES


def measure(
    name: str, prompts: list[Prompt], engines: dict[str, Turns], options: argparse.Namespace
) -> list[Row]:
    outputs = engines["off"].run(prompts, options.tokens).outputs
    sound = [prompt for prompt, output in zip(prompts, outputs, strict=True) if not loops(output)]
    rows = []
    for wanted in options.rows:
        chosen = (sound * -(-wanted // len(sound)))[:wanted]
        turns: dict[str, list[Turn]] = {mode: [] for mode in MODES}
        for _ in range(options.pairs + 1):  # the first records steps and is not counted
            for mode in MODES:
                turns[mode].append(engines[mode].run(chosen, options.tokens))
        rows.append(_row(name, wanted, {mode: each[1:] for mode, each in turns.items()}))
        rows[-1]["loop"] = f"{len(prompts) - len(sound)} of {len(prompts)}"
    return rows


def _row(name: str, rows: int, turns: dict[str, list[Turn]]) -> Row:
    off, auto = turns["off"], turns["auto"]
    row: Row = {"task": name, "rows": rows, "off tokens/s": statistics.median(turn.rate for turn in off)}
    for mode in MODES[1:]:
        factors = [one.rate / plain.rate for one, plain in zip(turns[mode], off, strict=True)]
        row[f"{mode} x"] = statistics.median(factors)
        row[f"{mode} lowest"] = min(factors)
    drafted = sum(turn.drafted for turn in auto)
    row["accepted %"] = 100 * sum(turn.accepted for turn in auto) / max(drafted, 1)
    same = [one.outputs == plain.outputs for one, plain in zip(auto, off, strict=True)]
    row["same tokens"] = f"{sum(same)} of {len(same)}"
    return row


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("speculation")), end="\n\n", flush=True)
    engines = {mode: Turns(mode, options.threads) for mode in MODES}
    tokenizer = AutoTokenizer.from_pretrained(engines["off"].info.tokenizer)
    rows = []
    for name, task in (("copy", COPY), ("extract", EXTRACT)):
        rows += measure(name, prompts_of(tokenizer, task), engines, options)
    print(plots.markdown(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m ops.bench speculation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=150, help="of an output, at most")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0: one for each core")
    return parser.parse_args()


if __name__ == "__main__":
    main()
