"""What grammars cost a step on the CPU: rows with and without one, in turns in one engine.

    python -m ops.bench grammars [--models tiny14m smol135m qwen06b] [--turns 3]
    python -m ops.bench grammars --schemas 1000 --models smol135m

The first: 32 rows that follow one schema of 30 fields, beside the same rows that follow none, in steps in
which all rows decode. A grammar's forced tokens come several at once: such a step computes, and gives, more
tokens; "at equal tokens" compares it with a step of so many plain rows. With `--logprobs`, asked for by all
rows then, they come one by one: a step gives 32 tokens with a grammar, too. The second: requests that each
have a schema of their own, and the same ones without it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.bench import plots
from ops.bench.command_line import add_threads, parsed, parser_of
from ops.bench.grammars.schemas import record
from ops.bench.grammars.turns import Turn, run
from ops.bench.measures import percentile
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.compiled_config import compiled_config
from ops.bench.models.size import size_of
from ops.bench.models.tokenizer import sized_tokenizer
from ops.bench.plots import Row
from ops.bench.workloads import make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

PROMPT = 64  # tokens
FIELDS = 30
ROWS_OF_MANY = 64  # in the batch, as a worker's on a CPU


def one_schema(engine: Engine[Any], model: str, vocab: int, options: argparse.Namespace) -> Row:
    """Rows of `tokens` tokens, which end before their records do; then as many plain rows as a grammar's step
    has tokens."""
    rows, grammar = options.rows, record(options.fields)
    plain = _requests(vocab, rows, options)
    bound = [replace(request, grammar=grammar) for request in plain]
    per_step = round(_step(engine, bound)[1])
    more = _requests(vocab, per_step, options)
    turns = [[_step(engine, requests) for requests in (plain, bound, more)] for _ in range(options.turns + 1)]
    plain_ms, grammar_ms, more_ms = (
        1e3 * statistics.median(turn[kind][0] for turn in turns[1:]) for kind in range(3)
    )
    tokens = statistics.median(turn[1][1] for turn in turns[1:]) / rows
    return {
        "model": model,
        "rows": rows,
        "plain ms": plain_ms,
        "grammar ms": grammar_ms,
        "a step": grammar_ms / plain_ms,
        "tokens a step": tokens,
        "a token": grammar_ms / plain_ms / tokens,
        "at equal tokens": grammar_ms / more_ms,
    }


def _requests(vocab: int, rows: int, options: argparse.Namespace) -> list[EngineRequest]:
    prompts = make("a", vocab).prompts[:rows]
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0 if options.logprobs else None)
    return [
        EngineRequest(handle, tuple(prompt[:PROMPT]), options.tokens, sampling)
        for handle, prompt in enumerate(prompts)
    ]


def _step(engine: Engine[Any], requests: list[EngineRequest]) -> tuple[float, float]:
    """Seconds and tokens of a step in which all of these decode."""
    turn = run(engine, requests)
    assert set(turn.lengths.values()) == {requests[0].max_tokens}, f"rows end on their own: {turn.reasons}"
    steps = turn.full(len(requests))
    return statistics.fmean(s.seconds for s in steps), statistics.fmean(s.tokens for s in steps)


def many_schemas(engine: Engine[Any], model: str, options: argparse.Namespace) -> list[Row]:
    """The prompts are in the cache but for a token: what a step takes is not their prefill. The first rows,
    with which steps are recorded for replay, are not counted.
    """
    count, tokens = options.schemas, options.tokens
    head = tuple(range(20, 20 + PROMPT))
    asked = EngineRequest(0, head, 1, SamplingSpec(temperature=0.0))
    run(engine, [replace(asked, grammar=record(1))])  # the head, and the tokenizer
    everyone = [
        replace(asked, handle=n, prompt=(*head, 100 + n), max_tokens=tokens, grammar=record(4 + n % 9, n + 1))
        for n in range(count + 2 * ROWS_OF_MANY)
    ]
    bound, first = everyone[:count], everyone[count:]
    run(engine, first)
    run(engine, [replace(request, grammar=None) for request in first])
    under = run(engine, bound)
    same = [replace(request, grammar=None, max_tokens=under.lengths[request.handle]) for request in bound]
    without = run(engine, same)
    return [_spread(model, name, turn) for name, turn in (("without", without), ("schemas", under))]


def _spread(model: str, name: str, turn: Turn) -> Row:
    seconds = sorted(step.seconds for step in turn.steps)
    median, waits = percentile(seconds, 0.5), sorted(turn.waits_s) or [0.0]
    return {
        "model": model,
        "rows": name,
        "steps": len(seconds),
        "p50 ms": 1e3 * median,
        "p99 ms": 1e3 * percentile(seconds, 0.99),
        "longest ms": 1e3 * seconds[-1],
        "p99 / p50": percentile(seconds, 0.99) / median,
        "compiled after s, p50": percentile(waits, 0.5),
        "last": waits[-1],
        "tokens/s": sum(turn.lengths.values()) / sum(seconds),
    }


def measure(model: str, options: argparse.Namespace, folder: Path) -> list[Row]:
    """`folder`: for what is made on the way."""
    own = sized_tokenizer(checkpoint(model, "cpu"), folder)
    size = size_of(own)
    rows = ROWS_OF_MANY if options.schemas else 2 * options.rows
    config = compiled_config(own, size, rows, PROMPT + options.tokens, options.threads)
    engine = build(config, lambda message: None)[0]
    if options.schemas:
        return many_schemas(engine, model, options)
    return [one_schema(engine, model, size.vocab_size, options)]


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("grammars")), end="\n\n", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            rows += measure(model, options, Path(folder) / model.replace("/", "-"))
    print(plots.markdown(rows))


def _options() -> argparse.Namespace:
    parser = parser_of("grammars", __doc__)
    parser.add_argument("--models", nargs="+", default=["tiny14m", "smol135m"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--fields", type=int, default=FIELDS)
    parser.add_argument("--tokens", type=int, default=150, help="of an output")
    parser.add_argument("--turns", type=int, default=3, help="of each kind, beside one that is not counted")
    parser.add_argument("--schemas", type=int, default=0, help="as many different ones, one for each request")
    parser.add_argument("--logprobs", action="store_true", help="of each token, for all rows")
    add_threads(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
