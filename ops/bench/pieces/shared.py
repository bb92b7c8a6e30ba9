"""What reading a common beginning once for all rows saves: the attention of one layer in one decode step,
each row alone and all together, on a GPU, as a CUDA graph.

    python -m ops.bench shared [--heads 32 --kv-heads 8 --dim 128] [--repeats 50]

Per case: milliseconds for a layer, their ratio, and the floor: the bytes of the different blocks, each read
once at the bandwidth measured in the same run. The first case is 200 questions about one document.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import torch
from ops.bench import machine
from ops.bench.command_line import parser_of

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Case:
    prefix_groups: int
    rows: int  # of each
    shared: int  # tokens of the prefix of a group's rows, whole blocks
    own: int  # tokens after them, the new one included

    def __str__(self) -> str:
        return f"{self.prefix_groups} x {self.rows} rows, {self.shared} shared + {self.own} own"

    @property
    def blocks(self) -> tuple[int, int]:
        """Of a prefix group, and of a row."""
        return self.shared // BLOCK, -(-self.own // BLOCK)


CASES = (
    Case(1, 200, 4000, 82),
    Case(1, 256, 192, 64),
    Case(16, 16, 2000, 100),
    Case(1, 8, 8000, 100),
    Case(64, 4, 512, 128),
    Case(1, 64, 512, 2000),
)


def plan_of(case: Case) -> Plan:
    """One decode step of the case; block 0 is nobody's."""
    shared, own = case.blocks
    count = case.prefix_groups * case.rows
    begins = 1 + np.arange(case.prefix_groups * shared).reshape(case.prefix_groups, shared)
    rest = 1 + begins.size + np.arange(count * own).reshape(count, own)
    table = np.concatenate([begins.repeat(case.rows, axis=0), rest], axis=1).astype(np.int32)
    plan = packed_plan(np.ones(count), np.full(count, case.shared + case.own), table, BLOCK, samples=True)
    return replace(
        plan,
        prefix_group_lens=np.full(case.prefix_groups, case.shared, np.int32),
        prefix_group_starts=np.arange(case.prefix_groups + 1, dtype=np.int32) * np.int32(case.rows),
        prefix_group_segments=np.arange(count, dtype=np.int32),
    )


def alone(plan: Plan) -> Plan:
    nothing = np.empty(0, np.int32)
    return replace(
        plan,
        prefix_group_lens=nothing,
        prefix_group_starts=np.zeros(1, np.int32),
        prefix_group_segments=nothing,
    )


def blocks_in(plan: Plan) -> int:
    return int(plan.block_tables[0].max()) + 1


def layer_ms(backend: AttentionBackend, plan: Plan, spec: LayerSpec, repeats: int) -> float:
    """Median of the device's time, without that of the launches."""
    device = torch.device("cuda")
    query, key, value = (
        torch.randn(plan.token_count, heads, spec.key_dim, device=device, dtype=torch.bfloat16)
        for heads in (spec.heads, spec.kv_heads, spec.kv_heads)
    )
    # as between two layers, whose data evict each other from the caches
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device=device)
    backend.begin(plan)
    backend.attend(0, query, key, value)  # compiled here
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.attend(0, query, key, value)
    times: list[float] = []
    for _ in range(repeats):
        flush.zero_()
        before, after = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def main() -> None:
    parser = parser_of("shared", __doc__)
    for name, default in (("heads", 32), ("kv-heads", 8), ("dim", 128), ("repeats", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: nothing to measure")
    from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention

    device = torch.device("cuda")
    limits = machine.measure(0, "cuda")
    print(f"{machine.describe()}, {machine.hardware('cuda')}, {limits}")
    spec = LayerSpec(options.heads, options.kv_heads, options.dim, options.dim, options.dim**-0.5)
    print("| rows | alone, ms | together, ms | ratio | floor, ms |\n|---|---|---|---|---|")
    for case in CASES:
        plan = plan_of(case)
        storage = KVStorage([spec], blocks_in(plan), BLOCK, torch.bfloat16, device)
        storage.keys[0].normal_()
        storage.values[0].normal_()
        backend = TritonAttention(storage)
        one = layer_ms(backend, alone(plan), spec, options.repeats)
        all_ = layer_ms(backend, plan, spec, options.repeats)
        floor = storage.blocks * storage.bytes_per_block / limits.read_bytes_s * 1e3
        print(f"| {case} | {one:.3f} | {all_:.3f} | {one / all_:.2f} | {floor:.3f} |")


if __name__ == "__main__":
    main()
