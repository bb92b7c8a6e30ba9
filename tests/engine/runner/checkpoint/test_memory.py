"""The KV pool's size and the number of threads: from settings, and from what machine and container leave."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from support.engine.ready import INFO
from support.models.checkpoints import build
from transformers import modeling_utils

from millstream_worker.engine.runner.device.cgroup import ControlGroups
from millstream_worker.engine.runner.device.cpu_threads import available_cores, use_threads
from millstream_worker.engine.runner.kv.pool_size import (
    GIB,
    BadKVMemory,
    available_bytes,
    capacity_line,
    free_bytes,
    pool_bytes,
    step_bytes,
)
from millstream_worker.engine.runner.model import weights
from millstream_worker.engine.runner.model.load import load_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
KIB = 1024


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("4KiB", 4),
        ("2MiB", 2048),
        ("1GiB", 2**20),
        ("1.5 gib", 3 * 2**19),
        ("10MB", 9765),
        ("2M", 1953),
        ("1073741824", 2**20),
        ("4096b", 4),
        ("0.5", 5 * 2**20),
        (".25", 5 * 2**19),
        ("10%", 2**20),
        ("1.0", 10 * 2**20),
        ("100%", 10 * 2**20),
        ("Auto", 4 * 2**20),
    ],
)
def test_settings_become_blocks_of_one_kib(setting: str, expected: int) -> None:
    assert pool_bytes(setting, KIB, CPU, free=10 * GIB) // KIB == expected


def test_auto_memory_takes_a_share_and_at_most_4_gib_on_the_cpu() -> None:
    assert pool_bytes("auto", GIB, CPU, free=5 * GIB) == 2 * GIB
    assert pool_bytes("auto", GIB, CPU, free=1000 * GIB) == 4 * GIB
    assert pool_bytes("auto", GIB, CUDA, free=100 * GIB) == 90 * GIB


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("lots", 'give "auto", a size'),
        ("", 'give "auto", a size'),
        ("-1GiB", 'give "auto", a size'),
        ("2GB free", 'give "auto", a size'),
        ("nan", 'give "auto", a size'),
        ("0.0", "a share is above 0"),
        ("150%", "a share is above 0"),
        ("11GiB", "only 10.00 GiB are free on cpu"),
        ("1", "1 bytes hold not even one block of 1.00 KiB"),
        ("0", "0 bytes hold not even one block"),
    ],
)
def test_what_is_no_size_is_said_with_its_value_and_a_remedy(setting: str, says: str) -> None:
    with pytest.raises(BadKVMemory) as refused:
        pool_bytes(setting, KIB, CPU, free=10 * GIB)

    assert f"kv_memory {setting!r}" in str(refused.value)
    assert says in str(refused.value)


def test_what_a_step_needs_is_never_the_pools() -> None:
    assert pool_bytes("100%", KIB, CPU, aside=4 * GIB, free=10 * GIB) == 6 * GIB
    assert pool_bytes("auto", GIB, CUDA, aside=20 * GIB, free=100 * GIB) == 72 * GIB
    assert pool_bytes("auto", GIB, CUDA, aside=30 * GIB, free=100 * GIB) == 63 * GIB
    with pytest.raises(BadKVMemory, match=r"only 6.00 GiB are free on cpu beside the 4.00 GiB that a step"):
        pool_bytes("9GiB", KIB, CPU, aside=4 * GIB, free=10 * GIB)
    with pytest.raises(BadKVMemory, match=r"not even one block .* lower max_step_tokens or max_rows"):
        pool_bytes("auto", KIB, CPU, aside=4 * GIB, free=GIB)


@pytest.mark.parametrize("case", ["llama", "gpt2", "mixtral"])
def test_a_step_needs_more_the_more_tokens_and_rows_it_has(case: str, tmp_path: Path) -> None:
    loaded = load_model(str(build(case, tmp_path)), dtype=torch.float32, device=CPU)
    width = {"llama": 48, "gpt2": 128, "mixtral": 2 * 96}[case]  # of two experts, each of two halves of 48

    def step(tokens: int, rows: int) -> int:
        return step_bytes(loaded.model, vocab_size=loaded.vocab_size, tokens=tokens, rows=rows)

    assert step(1000, 8) - step(0, 8) == 1000 * width * 6 * 4
    assert step(8, 1000) - step(8, 0) == 1000 * loaded.vocab_size * 84


def test_what_is_free_here() -> None:
    free = free_bytes(CPU)

    assert 0 < free <= psutil.virtual_memory().total
    assert available_bytes() == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert 0 < pool_bytes("auto", 2**20, CPU, free=free_bytes(CPU)) <= 4 * GIB


def test_holes_between_a_gpus_tensors_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {
        "mem_get_info": (1000, 9000),
        "memory_reserved": 700,
        "memory_allocated": 400,
        "memory_stats": {"inactive_split_bytes.all.current": 60},
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)

    assert free_bytes(torch.device("cuda")) == 1000 + 700 - 400 - 60


def test_weights_are_no_part_of_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers would have it, which takes memory for all at once."""
    taken: list[str] = []
    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", lambda *arguments: taken.append("all"))
    with weights._segments_of_their_own():
        modeling_utils.caching_allocator_warmup(None, {}, None)
    assert not taken
    modeling_utils.caching_allocator_warmup(None, {}, None)
    assert taken


def test_the_capacity_is_said_in_tokens_and_rows() -> None:
    info = replace(
        INFO, dtype="bfloat16", kv_format="bfloat16", context_length=8192, blocks=5825, max_rows=64,
        kv_bytes_per_token=23040,
    )  # fmt: skip
    assert capacity_line(info) == (
        "KV cache 2.00 GiB: 5,825 blocks of 16 = 93,200 tokens of 23,040 bytes "
        "(2 x bfloat16 x layers x KV heads x head size); "
        "rows that fit, by tokens each: 11 of 8,192, 91 of 1,024, 364 of 256; at most 64 at once"
    )
    said = capacity_line(replace(info, kv_format="int8"))
    assert "(2 x int8 x layers x KV heads x head size, scales included)" in said
    assert "each: 364 of 256; at most" in capacity_line(replace(info, context_length=256))


# --- a container's limits, in files as the kernel lays them out ------------------------------------------


def groups(tmp_path: Path, membership: str, files: dict[str, str]) -> ControlGroups:
    (tmp_path / "cgroup").write_text(membership)
    for name, content in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return ControlGroups(tmp_path / "fs", tmp_path / "cgroup")


def test_version_2_limits_of_the_own_group_and_of_those_above(tmp_path: Path) -> None:
    limits = groups(
        tmp_path,
        "0::/pod/worker\n",
        {
            "pod/worker/memory.max": "max\n",
            "pod/worker/memory.current": "100\n",
            "pod/worker/cpu.max": "300000 100000\n",
            "pod/memory.max": "1000\n",
            "pod/memory.current": "700\n",
            "pod/memory.stat": "anon 300\ninactive_file 250\nactive_file 10\n",
            "pod/cpu.max": "250000 100000\n",
            "cpu.max": "max 100000\n",
        },
    )

    assert limits.memory_left() == 550
    assert limits.cpu_quota() == 2.5


def test_version_1_limits_where_the_own_group_is_what_is_mounted(tmp_path: Path) -> None:
    limits = groups(
        tmp_path,
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
        {
            "memory/memory.limit_in_bytes": "5000\n",
            "memory/memory.usage_in_bytes": "4800\n",
            "memory/memory.stat": "cache 900\ntotal_inactive_file 300\n",
            "cpu/cpu.cfs_quota_us": "150000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )

    assert limits.memory_left() == 500
    assert limits.cpu_quota() == 1.5


def test_no_limits_and_no_groups(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    none = groups(tmp_path, "3:cpu:/\n0::/\n", files)
    for limits in (none, ControlGroups(tmp_path / "nowhere", tmp_path / "nothing")):
        assert limits.memory_left() is None
        assert limits.cpu_quota() is None


@pytest.mark.parametrize(
    ("most", "high", "used", "left"),
    [(1100, "max", 100, 1000), (1100, "700", 100, 600), (1100, "2000", 100, 1000), (10, "max", 12, 0)],
)
def test_where_the_kernel_holds_a_process_up_there_is_a_limit(
    most: int, high: str, used: int, left: int, tmp_path: Path
) -> None:
    files = {"memory.max": str(most), "memory.high": high, "memory.current": str(used)}
    assert groups(tmp_path, "0::/\n", files).memory_left() == left


def test_cores_are_those_of_the_affinity_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 6, 9}, raising=False)
    for number, siblings in {0: "0,4", 1: "1,5", 2: "2,6", 6: "2,6"}.items():  # of 9 the kernel says nothing
        file = tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(siblings)

    def cores(quota: str) -> int:
        return available_cores(groups(tmp_path, "0::/\n", {"cpu.max": quota}), tmp_path)

    assert cores("max 100000") == 4
    assert cores("290000 100000") == 3
    assert cores("150000 100000") == 2
    assert cores("149000 100000") == 1
    assert cores("10000 100000") == 1


def test_torch_computes_with_the_threads_that_were_chosen() -> None:
    before = torch.get_num_threads()
    try:
        assert use_threads(3) == torch.get_num_threads() == 3
        assert use_threads(0) == torch.get_num_threads() == available_cores()
    finally:
        torch.set_num_threads(before)
