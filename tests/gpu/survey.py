"""A survey of the engine on a GPU, in a few minutes: kernels against the memory's speed and each other, steps
launched one operation at a time, replayed, compiled and both, and a run of a whole engine.

    PYTHONPATH=worker:producer:tests:. python tests/gpu/survey.py [--model qwen06b] [--rows 256] [--quick]

Prints the rows of one table as it finds them; a part that fails is told, and the next one begins. It needs
what the engine imports (torch, transformers, accelerate with psutil, gguf, msgpack), no pytest and no server;
so it checks the tokens of a few models as well, which the tests beside it do thoroughly.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401  transformers needs it to load onto a GPU: better told now than by each part
import numpy as np
import torch
from ops.bench.models.checkpoints import checkpoint
from support import checkpoints
from support.on_device import engine_on, tokens_of
from support.planning import Segment, greedy_loads, pack

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.plan import Plan
from millstream_worker.engine.config import EngineConfig
from millstream_worker.engine.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.compiled import compile_layers
from millstream_worker.engine.runner.graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.graphs.steps import Limits
from millstream_worker.engine.runner.model import load_model
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.sampler import Sampler
from millstream_worker.engine.runner.storage import KVStorage

DEVICE = torch.device("cuda")
LAYER = LayerSpec(heads=32, kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5)  # of an 8B model
BLOCK = 16
CONTEXT = 300
CASES = ("llama", "qwen3", "gemma2", "gpt_oss", "gpt2", "mixtral", "llama-dynamic")
COMPILED = ("llama", "gemma2")

Row = tuple[str, str]  # what, and what was found
Part = Callable[[], Row]


def rows_at(context: int, rows: int, shared: int = 0, new: int = 1) -> Plan:
    """Rows of `context` tokens, the last `new` of them computed now, the first `shared` blocks the same."""
    own = -(-context // BLOCK) - shared
    order = np.random.default_rng(0).permutation(rows * own) + shared
    tables = [[*range(shared), *order[row * own : (row + 1) * own].tolist()] for row in range(rows)]
    segments = [Segment(row, [5] * new, context - new, table) for row, table in enumerate(tables)]
    plan = pack(segments, BLOCK)
    if not shared:
        return plan
    return dataclasses.replace(
        plan,
        family_lens=np.array([shared * BLOCK], np.int32),
        family_starts=np.array([0, rows], np.int32),
        family_segments=np.arange(rows, dtype=np.int32),
    )


def without_families(plan: Plan) -> Plan:
    none = np.empty(0, np.int32)
    return dataclasses.replace(
        plan, family_lens=none, family_starts=np.zeros(1, np.int32), family_segments=none
    )


@torch.inference_mode()
def kernel_us(plan: Plan, repeats: int = 10) -> float:
    """One layer's attention, recorded, so that the host's part does not count."""
    blocks = int(plan.block_tables[0].max()) + 1
    storage = KVStorage([LAYER], blocks, BLOCK, torch.bfloat16, DEVICE)
    backend, recorder = TritonAttention(storage), CudaRecorder(DEVICE)
    tokens = plan.token_count
    query = torch.randn(tokens, LAYER.heads, LAYER.key_dim, device=DEVICE, dtype=torch.bfloat16)
    key, value = torch.randn(2, tokens, LAYER.kv_heads, LAYER.key_dim, device=DEVICE, dtype=torch.bfloat16)
    backend.begin(plan)
    with recorder.apart():
        backend.attend(0, query, key, value)
        recorder.begin()
        for _ in range(repeats):
            backend.attend(0, query, key, value)
        replay = recorder.end()
    return 1e3 * median_ms(replay) / repeats


def median_ms(run: Callable[[], object], times: int = 9) -> float:
    run()
    measured = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        measured.append(start.elapsed_time(end))
    return statistics.median(measured)


def decode_kernel(count: int, context: int) -> Row:
    took = kernel_us(rows_at(context, count))
    speed = count * context * 2 * LAYER.kv_heads * LAYER.key_dim * 2 / took / 1e6
    return f"decode kernel, {count} rows of {context:,}", f"{took:,.0f} us, {speed:.2f} TB/s"


def shared_kernel() -> Row:
    plan = rows_at(4064, 200, shared=250)
    apart, together = kernel_us(without_families(plan)), kernel_us(plan)
    what = "decode kernel, 200 rows that share 4,000 of 4,064"
    return what, f"{apart:,.0f} us apart, {together:,.0f} us shared"


def prefill_kernel(count: int, new: int) -> Row:
    took = kernel_us(rows_at(new, count, new=new), repeats=3)
    work = 4 * LAYER.heads * LAYER.key_dim * count * new * (new + 1) / 2
    return f"prefill kernel, {count} rows of {new:,}", f"{took:,.0f} us, {work / took / 1e6:.0f} TFLOP/s"


def kernels() -> Iterator[Part]:
    for count, context in ((256, 300), (256, 4000), (1, 4000), (16, 30_000)):
        yield partial(decode_kernel, count, context)
    yield shared_kernel
    for count, new in ((8, 1024), (1, 8192), (64, 128)):
        yield partial(prefill_kernel, count, new)


def step_ms(runner: Runner, plan: Plan, steps: int = 30) -> float:
    """By the host's clock, with one step launched ahead, as the engine does."""
    ahead = runner.launch(plan)
    start = time.perf_counter()
    for _ in range(steps):
        ahead, before = runner.launch(plan), ahead
        runner.settle(before)
    took = time.perf_counter() - start
    runner.settle(ahead)
    return 1e3 * took / steps


def step_plans(most: int) -> dict[str, Plan]:
    mixed = [Segment(row, [5], CONTEXT - 1, range(row * 20, row * 20 + 20)) for row in range(most - 4)]
    chunks = [Segment(row, [5] * 256, 0, range(row * 20, row * 20 + 20)) for row in range(most - 4, most)]
    plans = {f"decode of {rows}": rows_at(CONTEXT, rows) for rows in sorted({1, min(64, most), most})}
    return plans | {f"{most - 4} decoding, 4 chunks of 256": pack([*mixed, *chunks], BLOCK)}


def steps(folder: Path, most: int, *, compiled: bool) -> Row:
    loaded = load_model(str(folder), dtype=torch.bfloat16, device=DEVICE)
    print(*loaded.notes, sep="\n")
    if compiled:
        compile_layers(loaded, Path("/tmp/millstream-compiled"), print)
    storage = KVStorage(loaded.layers, most * 24, BLOCK, loaded.dtype, DEVICE)
    runner = Runner(loaded, storage, Sampler(loaded.vocab_size, most, DEVICE))
    plans, found = step_plans(most), []
    first = [Segment(row, [5], 0, [row]) for row in range(most)]
    runner.settle(runner.launch(pack(first, BLOCK, greedy_loads(range(most)))))
    for recorded in (False, True):
        if recorded:
            runner.record(CudaRecorder(DEVICE), Limits(most, most + 1024, 64), print)
        for name, plan in plans.items():
            step_ms(runner, plan, 3)
            found.append(f"{name}{' replayed' if recorded else ''} {step_ms(runner, plan):.2f}")
    return f"steps{' of compiled layers' if compiled else ''}, ms", "; ".join(found)


def check(case: str) -> Row:
    """Tokens of a tiny model in float32, on the GPU with and without graphs, against those of the CPU."""
    told: list[str] = []
    ways = {"eager": {"cuda_graphs": "off"}, "graphs": {"cuda_graphs": "auto"}}
    if case in COMPILED:
        ways["compiled, graphs"] = {"compile_model": "on"}
    with tempfile.TemporaryDirectory() as name:
        folder = checkpoints.build(case, Path(name))
        want = tokens_of(engine_on("cpu", folder))
        same = [
            f"{way} {tokens_of(engine_on('cuda', folder, told.append, **changes)) == want}"
            for way, changes in ways.items()
        ]
    reasons = [line for line in told if line.startswith(("no CUDA graphs", "the model runs without"))]
    return f"tokens of {case} as on the CPU", ", ".join([*same, *reasons])


def whole(folder: Path, rows: int, **changes: Any) -> Row:
    told: list[str] = []
    config = EngineConfig(str(folder), device="cuda", kv_memory="0.5", max_rows=rows, **changes)
    start = time.perf_counter()
    engine, info = build(config, told.append)
    ready = time.perf_counter() - start
    runner: Any = engine._runner
    for count in (8, rows * 2):
        start = time.perf_counter()
        runner.clock.reset()
        for handle in range(count):
            prompt = tuple((handle * 31 + place * 7) % info.vocab_size for place in range(128))
            engine.add(EngineRequest(handle, prompt, 128, SamplingSpec(temperature=0.0)))
        while not engine.idle:
            engine.step()
    took = time.perf_counter() - start
    recorded = [line for line in told if "CUDA graphs" in line]
    return (
        f"engine, {rows * 2} rows of 128 + 128, {changes or 'as it comes'}",
        f"{rows * 2 * 128 / took:,.0f} tokens/s, device idle {runner.clock.times.idle_share:.1%}, "
        f"ready in {ready:.0f} s; {recorded[-1] if recorded else 'no graphs'}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", default="qwen06b", help="a shape of ops.bench.models.shapes, a folder or a hub id"
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--quick", action="store_true", help="checks and kernels only")
    options = parser.parse_args()
    torch.set_num_threads(4)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    for part in parts(options):
        tell(part)


def parts(options: argparse.Namespace) -> Iterator[Part]:
    yield from (partial(check, case) for case in CASES)
    yield from kernels()
    if not options.quick:
        folder = checkpoint(options.model)
        yield from (partial(steps, folder, options.rows, compiled=compiled) for compiled in (False, True))
        yield partial(whole, folder, options.rows)
        yield partial(whole, folder, options.rows, cuda_graphs="off")


def tell(part: Part) -> None:
    start = time.perf_counter()
    try:
        what, found = part()
    except Exception:  # noqa: BLE001 - the next part may be sound
        traceback.print_exc()
        what, found = str(part), "FAILED"
    print(f"| {what} | {found} | {time.perf_counter() - start:.0f} s |", flush=True)
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
