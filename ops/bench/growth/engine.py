"""How the engine's rate and memory grow: with the rows of the batch, with their context, with the pool."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench import memory
from ops.bench.growth.part import Outcome, Setting, curve
from ops.bench.limits.rates import decode_tokens_s, drained_tokens_s, prefill_tokens_s
from ops.bench.plots import Panel, Row
from ops.bench.steps import watched

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

BLOCK = 16
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ROW_PROMPT = 64
CONTEXTS = (256, 1024, 4096, 16_384, 32_768)
CONTEXT_ROWS = 4
POOL_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)
POOL_ROWS, POOL_PROMPT, POOL_OUTPUT = 64, 128, 128
ROOM = 256  # tokens that a row may sample before it would be preempted

AXES = {
    "rows": "rows",
    "context": "tokens of context",
    "pool tokens": "tokens that the pool holds",
}
QUICK_ROWS, QUICK_CONTEXTS, QUICK_SHARES = (1, 4), (32, 64), (1.0, 0.25)


@dataclass(frozen=True, slots=True)
class Decode:
    """Prefill of equal rows, then steps in which each of them samples a token."""

    prefill_tokens_s: float
    tokens_s: float
    kv_mib: float
    peak_mib: float


def rows(setting: Setting) -> Outcome:
    sizes = QUICK_ROWS if setting.options.quick else ROWS
    blocks = max(sizes) * -(-(ROW_PROMPT + ROOM) // BLOCK)
    engine, model = _engine(setting, setting.folder, blocks, max(sizes)), setting.size
    limits = setting.limits
    found: list[Row] = []
    for count in setting.within(sizes, 1.0):
        result = _decode(engine, setting, count, ROW_PROMPT)
        most = decode_tokens_s(model, count, ROW_PROMPT + setting.options.steps // 2, limits)
        found.append({"rows": count} | _columns(result, most))
    panels = [_rate("Decode", found, "rows"), _memory(found, "rows")]
    return Outcome(f"Rows of the batch, each of {ROW_PROMPT} tokens and more", found, panels)


def context(setting: Setting) -> Outcome:
    sizes = QUICK_CONTEXTS if setting.options.quick else CONTEXTS
    folder = _with_context(setting.folder, max(sizes) + ROOM, setting.scratch)
    blocks = CONTEXT_ROWS * -(-(max(sizes) + ROOM) // BLOCK)
    engine, model = _engine(setting, folder, blocks, CONTEXT_ROWS), setting.size
    limits = setting.limits
    found: list[Row] = []
    for tokens in setting.within(sizes, 1.5):
        result = _decode(engine, setting, CONTEXT_ROWS, tokens)
        most = decode_tokens_s(model, CONTEXT_ROWS, tokens + setting.options.steps // 2, limits)
        prefill: Row = {
            "prefill tokens/s": result.prefill_tokens_s,
            "limit prefill tokens/s": prefill_tokens_s(model, tokens, limits),
        }
        found.append({"context": tokens} | _columns(result, most) | prefill)
    panels = [
        _rate("Decode", found, "context"),
        _rate("Prefill", found, "context", "prefill tokens/s"),
        _memory(found, "context"),
    ]
    return Outcome(f"Context of {CONTEXT_ROWS} rows", found, panels)


def pool(setting: Setting) -> Outcome:
    """The same work in ever smaller pools: rows wait first, then they are preempted and computed again."""
    count, prompt, output = (4, 16, 16) if setting.options.quick else (POOL_ROWS, POOL_PROMPT, POOL_OUTPUT)
    row_blocks = -(-(prompt + output) // BLOCK)
    shares = QUICK_SHARES if setting.options.quick else POOL_SHARES
    sizes = [max(int(count * row_blocks * share), row_blocks + 1) * BLOCK for share in shares]
    limits, model = setting.limits, setting.size
    found: list[Row] = []
    for tokens in setting.within(sizes):
        row = _drain(setting, tokens // BLOCK, count, prompt, output)
        fit = min(float(count), tokens / (prompt + output / 2))  # rows at once, of average length
        most = drained_tokens_s(model, fit, prompt, output, limits)
        found.append({"pool tokens": tokens} | row | {"limit tokens/s": most})
    x = "pool tokens"
    again = [curve(found, x, "preempted %"), curve(found, x, "computed again %")]
    panels = [
        _rate("Rate", found, x),
        Panel("Rows at once", AXES[x], "rows", [curve(found, x, "rows at once")], log_x=True),
        Panel("Preempted rows, tokens computed again", AXES[x], "% of rows, of tokens", again, log_x=True),
    ]
    return Outcome(f"Pool for {count} rows of {prompt} + {output} tokens", found, panels)


def _engine(setting: Setting, folder: Path, blocks: int, max_rows: int) -> Engine[Any]:
    """Warmed up: compiling and allocating of its first steps is not measured."""
    engine, _, _ = watched(_config(setting, folder, blocks, max_rows))
    _decode(engine, setting, min(max_rows, 2), BLOCK)
    return engine


def _with_context(folder: Path, tokens: int, where: Path) -> Path:
    """The folder itself if its model takes so many tokens; else the same weights in a new folder under
    `where`. Random weights are equally random at positions beyond their own context.
    """
    config = json.loads((folder / "config.json").read_text())
    if config["max_position_embeddings"] >= tokens:
        return folder
    longer = where / f"{folder.name}-{tokens}"
    longer.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != "config.json":
            (longer / file.name).symlink_to(file.absolute())
    (longer / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))
    return longer


def _config(setting: Setting, folder: Path, blocks: int, max_rows: int) -> EngineConfig:
    return EngineConfig(
        str(folder),
        device=setting.options.device,
        threads=setting.options.threads,
        kv_memory=str(blocks * BLOCK * setting.size.kv_token_bytes),
        block_size=BLOCK,
        max_rows=max_rows,
        compile_model=setting.options.compile_model,
        speculate="off",  # random weights repeat themselves
    )


def _decode(engine: Engine[Any], setting: Setting, count: int, prompt: int) -> Decode:
    memory.reset_peak()
    start = time.perf_counter()
    handles = _add(engine, setting, count, prompt, ROOM)
    missing = set(handles)
    while missing:
        step = engine.step()
        assert step is not None, "rows wait, and nothing is computed"
        missing -= set(step.handles)
    prefill_s = time.perf_counter() - start
    seconds: list[float] = []
    used = 0
    for _ in range(setting.options.steps):
        before = time.perf_counter()
        step = engine.step()
        seconds.append(time.perf_counter() - before)
        assert step is not None, "rows run, and nothing is computed"
        assert len(step.handles) == count, "a row has ended or was preempted"
        used = step.stats.blocks_used
    engine.abort(handles)
    while not engine.idle:
        engine.step()
    kv_mib = used * BLOCK * setting.size.kv_token_bytes / 2**20
    return Decode(
        count * prompt / prefill_s, count / statistics.median(seconds), kv_mib, memory.peak_bytes() / 2**20
    )


def _drain(setting: Setting, blocks: int, count: int, prompt: int, output: int) -> Row:
    engine, _, watch = watched(_config(setting, setting.folder, blocks, count))
    _add(engine, setting, count, prompt, output)
    watch.restart()
    at_once, last = [], engine.scheduler.stats()
    while not engine.idle:
        step = engine.step()
        if step is not None:
            at_once.append(len(step.handles))
            last = step.stats
    needed = count * (prompt + output - 1)  # the last token is sampled, not computed
    return {
        "tokens/s": count * output / watch.wall_s,
        "rows at once": statistics.fmean(at_once),
        "preempted %": 100 * last.preemptions_total / count,
        "computed again %": 100 * (watch.computed - needed) / needed,
    }


def _add(engine: Engine[Any], setting: Setting, count: int, prompt: int, output: int) -> Sequence[int]:
    draw = random.Random(f"{count} {prompt}")
    vocab = setting.size.vocab_size
    for handle in range(count):
        tokens = tuple(draw.randrange(10, vocab) for _ in range(prompt))
        refused = engine.add(EngineRequest(handle, tokens, output, SamplingSpec(temperature=0.0)))
        assert refused is None, refused
    return range(count)


def _columns(result: Decode, most: float) -> Row:
    return {
        "tokens/s": result.tokens_s,
        "limit tokens/s": most,
        "KV MiB": result.kv_mib,
        "peak MiB": result.peak_mib,
    }


def _rate(title: str, found: Sequence[Row], x: str, y: str = "tokens/s") -> Panel:
    curves = [curve(found, x, y, "measured"), curve(found, x, f"limit {y}", "limit", "limit")]
    return Panel(title, AXES[x], "tokens/s", curves, log_x=True, log_y=True)


def _memory(found: Sequence[Row], x: str) -> Panel:
    curves = [
        curve(found, x, "peak MiB", "process, at most"),
        curve(found, x, "KV MiB", "KV cache of the rows"),
    ]
    return Panel("Memory", AXES[x], "MiB", curves, log_x=True, log_y=True)
