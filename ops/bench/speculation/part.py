"""What draft tokens gain: SmolLM2-135M-Instruct copies, extracts and quotes, without drafts, with all that
are likely, and with those that pay.

    python -m ops.bench speculation [--rows 1 8 32 64] [--pairs 9]
    python -m ops.bench speculation --models tiny14m qwen06b    shapes, which play what SmolLM2 wrote

The three engines take turns on the same prompts, which no turn finds in the cache. A pair is a turn with and
a turn without drafts; a factor is the median of the pairs' rates, with the 95 % interval of the median. The
tail is the time in which at most a 20th of the rows is left. Rows that repeat 16 tokens three times are left
out beforehand: a model that loops accepts every draft.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Any

from ops.bench import plots
from ops.bench.command_line import add_threads, parser_of
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.shapes import SHAPES
from ops.bench.plots import Row
from ops.bench.speculation.texts import SHARED_ROWS, Prompt, prompts_of
from ops.bench.speculation.turns import MODES, TAIL, Turn, Turns
from transformers import AutoTokenizer

from millstream.cli.embedded.demo_model import demo_model
from millstream_worker.engine.protocol.config import EngineConfig

TASKS = ("copy", "extract", "shared")
_LOOP, _TIMES = 16, 3  # tokens, and how often they come
_TAIL = 0.02  # of a turn: less is none
WARM = 3  # turns that are not counted: they record steps, of many sizes with drafts


def loops(output: Sequence[int]) -> bool:
    pieces = Counter(tuple(output[start : start + _LOOP]) for start in range(len(output) - _LOOP + 1))
    return max(pieces.values(), default=0) >= _TIMES


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, by order statistics: it holds it in at least 95 % of samples; of fewer than six values,
    it is all of them.
    """
    ranked, count, rank = sorted(values), len(values), 1
    while 2 * sum(comb(count, less) for less in range(rank + 1)) <= 0.05 * 2**count:
        rank += 1
    return ranked[rank - 1], ranked[count - rank]


def recorded(
    tasks: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, dict[Prompt, list[int]]], dict[str, str]]:
    """By task, what SmolLM2 answers to its prompts, without those that loop; and how many these are."""
    engine = Turns(_config(str(demo_model(print)), "off", options.threads))
    tokenizer: Any = AutoTokenizer.from_pretrained(engine.info.tokenizer)
    answers, left_out = {}, {}
    for task in tasks:
        prompts = prompts_of(tokenizer, task, SHARED_ROWS if task == "shared" else 2 * max(options.rows))
        outputs = engine.run(prompts, options.tokens).outputs
        pairs = zip(prompts, outputs, strict=True)
        answers[task] = {prompt: output for prompt, output in pairs if not loops(output)}
        left_out[task] = f"{len(prompts) - len(answers[task])} of {len(prompts)}"
    return answers, left_out


def measure(
    task: str,
    engines: dict[str, Turns],
    answers: dict[Prompt, list[int]],
    rows: int,
    options: argparse.Namespace,
) -> Row:
    """Rows that decode together, or as many as the engine lets, if they share their document."""
    prompts = list(answers)[:rows]
    turns: dict[str, list[Turn]] = {mode: [] for mode in MODES}
    for _ in range(WARM + options.pairs):
        for mode in MODES:
            turns[mode].append(engines[mode].run(prompts, options.tokens))
    return _row(task, {mode: each[WARM:] for mode, each in turns.items()})


def _row(task: str, turns: dict[str, list[Turn]]) -> Row:
    off, auto = turns["off"], turns["auto"]
    row: Row = {
        "task": task,
        "rows": len(off[0].outputs),
        "off tokens/s": statistics.median(turn.rate for turn in off),
    }
    medians = {"off": 1.0}
    for mode in MODES[1:]:
        factors = [one.rate / plain.rate for one, plain in zip(turns[mode], off, strict=True)]
        low, high = interval(factors)
        medians[mode] = statistics.median(factors)
        row[mode] = f"{medians[mode]:.2f} ({low:.2f} to {high:.2f})"
    row["auto / best"] = medians["auto"] / max(medians["off"], medians["always"])
    tails = [plain.tail_s / one.tail_s for one, plain in zip(auto, off, strict=True) if one.tail_s]
    long = statistics.median(plain.tail_s / plain.seconds for plain in off) > _TAIL
    row["tail"] = f"{statistics.median(tails):.2f}" if long and len(off[0].outputs) >= TAIL else ""
    drafted = sum(turn.drafted for turn in auto)
    row["accepted %"] = 100 * sum(turn.accepted for turn in auto) / max(drafted, 1)
    same = [one.outputs == plain.outputs for one, plain in zip(auto, off, strict=True)]
    row["same tokens"] = f"{sum(same)} of {len(same)}"
    return row


def _config(model: str, mode: str, threads: int) -> EngineConfig:
    return EngineConfig(
        model, device="cpu", threads=threads, kv_memory="1GiB", compile_model="on", speculate=mode
    )


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("speculation")), end="\n\n", flush=True)
    answers, left_out = recorded(options.tasks, options)
    for task in options.tasks:
        print(f"{task}: {left_out[task]} answers loop and are left out")
    for model in options.models:
        print(f"\n{model}\n\n{plots.markdown(_rows(model, answers, options))}", flush=True)


def _rows(model: str, answers: dict[str, dict[Prompt, list[int]]], options: argparse.Namespace) -> list[Row]:
    folder, played = str(demo_model(print)), None
    if model != "smollm2":
        folder = str(checkpoint(model))
        width = SHAPES[model]["vocab_size"]
        answers = {task: _within(width, each) for task, each in answers.items()}
        played = {prompt: output for each in answers.values() for prompt, output in each.items()}
    engines = {mode: Turns(_config(folder, mode, options.threads), played) for mode in MODES}
    return [
        measure(task, engines, each, count, options)
        for task, each in answers.items()
        for count in ([len(each)] if task == "shared" else options.rows)
    ]


def _within(width: int, answers: dict[Prompt, list[int]]) -> dict[Prompt, list[int]]:
    """In a vocabulary of that width."""
    return {
        tuple(token % width for token in prompt): [token % width for token in output]
        for prompt, output in answers.items()
    }


def _options() -> argparse.Namespace:
    parser = parser_of("speculation", __doc__)
    parser.add_argument("--models", nargs="+", choices=("smollm2", *SHAPES), default=["smollm2"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=150, help="of an output, at most")
    parser.add_argument("--pairs", type=int, default=9)
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
