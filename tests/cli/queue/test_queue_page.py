"""A queue's page fits the screen: a line for each worker, or all that is known of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from millstream import LaneStatus, QueueStatus, WorkerStatus
from millstream.cli.queue.cut_text import cut, flow, pad
from millstream.cli.queue.queue_page import Screen, queue_page
from millstream.wire.keys import Lane

WORKER = WorkerStatus(
    name="gpu-node-17.cluster.local-1a2b3c4d\x1b", model="HuggingFaceTB/SmolLM2-135M-Instruct",
    state="draining", rows_running=12, rows_waiting=3, grammars_waiting=2, max_rows=64, kv_used=30_000,
    kv_cached=13_000, kv_free=22_000, prompt_tokens_per_s=1203.4, output_tokens_per_s=17_088.1,
    prefix_hit_rate=0.31, started_ms=1_795_375_129_141, device="cuda:0", weights="int8", kv_format="int8",
    model_digest="0123456789abcdef0123456789abcdef", self_check="attention off by at most 0.004",
    fallbacks="cuda graphs off since an illegal memory access", package="0.2.0", versions=(1, 2),
)  # fmt: skip
FULL = QueueStatus(
    queue="docs", at_ms=1_795_385_129_141, shards=4, model=WORKER.model, model_digest=WORKER.model_digest,
    models=(WORKER.model, "tiny"),
    lanes=(LaneStatus(Lane.INTERACTIVE, 0, 3, None), LaneStatus(Lane.BATCH, 12_431, 64, 252.3)), delayed=3,
    dead=2, held_bytes=34 * 2**20, fullest_bytes=20 * 2**20, max_bytes=2**30, workers=(WORKER,),
    tenants={"acme": 8000, "": 44}, unread={},
)  # fmt: skip


SERVING = replace(WORKER, state="serving", fallbacks="")
LOADING = replace(
    SERVING, name="gpu-node-99-ffffffff", state="loading", model="", started_ms=FULL.at_ms - 42_000,
    step="reading weights", rows_running=0, max_rows=0, kv_used=0, kv_cached=0, kv_free=0,
)  # fmt: skip
HEAD = [
    "lane          waiting   running   oldest waiting",
    "interactive         0         3   –",
    "batch          12,431        64   4 min 12 s",
    "",
    "model           HuggingFaceTB/SmolLM2-135M-Instruct (0123456789ab)",
    "                its workers have 2: HuggingFaceTB/SmolLM2-135M-Instruct, tiny",
    "delayed retries 3",
    "dead letters    2",
    "requests held   34.0 MiB, 20.0 MiB in the fullest shard; a shard takes 1.0 GiB",
    "tenants waiting acme 8,000, (none) 44",
]


def fleet(count: int, *others: WorkerStatus) -> QueueStatus:
    """So many workers that serve, and others."""
    named = [replace(SERVING, name=f"gpu-node-{n:03}.cluster.local-1a2b{n:04}") for n in range(count)]
    return replace(FULL, workers=(*named, *others))


def test_a_worker_is_a_line_that_says_what_is_wrong() -> None:
    late = replace(SERVING, name="gpu-node-18.cluster.local-2a2b3c4d", late=True, heartbeat_s=21.4)
    lines = queue_page(replace(FULL, workers=(WORKER, late), loading=(LOADING,)), Screen(80, 50))
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("queue docs · 4 shards · 2026-")
    assert lines[2:] == [
        *HEAD,
        "workers         2",
        "                1 loading for 42 s: reading weights",
        "",
        "worker                   state     model             rows  output/s   KV",
        "gpu-node-17…a2b3c4d\\x1b  draining  Hugging…nstruct  12/64    17,088  46%  slower",
        "gpu-node-18…al-2a2b3c4d  serving   Hugging…nstruct  last seen 21 s ago",
        "gpu-node-99-ffffffff     loading   –                for 42 s: reading weights",
    ]
    roomy = queue_page(replace(FULL, workers=(WORKER,)), Screen(200, 50))
    assert roomy[-2:] == [
        "worker                                  state     model                                 rows  "
        "prompt/s  output/s   KV",
        "gpu-node-17.cluster.local-1a2b3c4d\\x1b  draining  HuggingFaceTB/SmolLM2-135M-Instruct  12/64  "
        "   1,203    17,088  46%  slower: cuda graphs off since an illegal memory access",
    ]


def test_all_that_is_known_of_each_worker() -> None:
    slower = replace(WORKER, fallbacks=f"attention: {WORKER.fallbacks}, and so much slower than it could be")
    status = replace(FULL, workers=(slower,), loading=(LOADING,))
    lines = queue_page(status, Screen(80, wide=True))
    assert max(map(len, lines)) <= 80
    assert lines[2:] == [
        *HEAD,
        "workers         1",
        "                1 loading for 42 s: reading weights",
        "",
        "gpu-node-17.cluster.local-1a2b3c4d\\x1b: draining, up 2 h 46 min",
        "  HuggingFaceTB/SmolLM2-135M-Instruct in int8 on cuda:0",
        "  rows      12 of 64 running, 3 waiting, 2 jobs' formats being compiled",
        "  tokens/s  1,203.4 prompt, 17,088.1 output",
        "  KV cache  46% used, 20% cached of 65,000 tokens in int8, 31% prefix hits",
        "  version   millstream 0.2.0, messages 1 to 2",
        "  checked   attention off by at most 0.004",
        "  slower    attention: cuda graphs off since an illegal memory access, and so",
        "            much slower than it could be",
        "",
        "gpu-node-99-ffffffff: loading, up 42 s",
        "  now       for 42 s: reading weights",
        "  version   millstream 0.2.0, messages 1 to 2",
        "  checked   attention off by at most 0.004",
    ]


def test_a_worker_that_reads_images_says_so() -> None:
    lines = queue_page(replace(FULL, workers=(replace(WORKER, images=True),)), Screen(80, wide=True))
    assert "  HuggingFaceTB/SmolLM2-135M-Instruct in int8 on cuda:0, reads images" in lines


@pytest.mark.parametrize(("columns", "lines"), [(80, 23), (100, 29), (200, 49)])
def test_twenty_workers_fit_one_screen(columns: int, lines: int) -> None:
    page = queue_page(fleet(19, WORKER), Screen(columns, lines))
    assert len(page) <= lines
    assert max(map(cell_len, page)) <= columns
    assert sum(line.startswith("gpu-node-") for line in page) == 20
    assert any(line.startswith("lane ") for line in page) is (lines > 40)


def test_what_has_no_line_is_counted_and_in_order() -> None:
    late = replace(SERVING, name="z-late", late=True, heartbeat_s=12.0)
    page = queue_page(replace(fleet(200, late), loading=(LOADING,)), Screen(80, 24))
    assert (len(page), max(map(len, page)) <= 80) == (24, True)
    assert [line.split()[0] for line in page[3:5]] == ["z-late", "gpu-node-99-ffffffff"]
    shown = sum("1a2b" in line for line in page)
    rest = 200 - shown
    rows = f"{12 * rest:,} of {64 * rest:,} rows"
    assert page[-1] == f"and {rest} more: {rows}, {17088.1 * rest:,.0f} output tokens/s"


@pytest.mark.parametrize("columns", [1, 10, 24, 40, 79])
@pytest.mark.parametrize("lines", [1, 3, 8, 24])
@pytest.mark.parametrize("wide", [True, False])
def test_no_screen_is_too_small(columns: int, lines: int, wide: bool) -> None:
    strange = replace(WORKER, name="日本語" * 30, model="模型" * 40, fallbacks="慢" * 300)
    page = queue_page(replace(fleet(30, strange), loading=(LOADING,)), Screen(columns, lines, wide))
    assert len(page) <= lines
    assert columns < 40 or max(map(cell_len, page)) <= columns


def test_a_file_gets_whole_names_and_all_workers() -> None:
    status = fleet(300, WORKER)
    page = "\n".join(queue_page(status, Screen()))
    assert all(one.name in page for one in status.workers or () if one.name.isprintable())
    assert WORKER.fallbacks in page


def test_a_queue_without_workers_says_who_loads() -> None:
    some = tuple(replace(LOADING, name=f"n-{n}", started_ms=FULL.at_ms - 1000 * n) for n in (5, 63))
    lines = queue_page(replace(FULL, workers=(), loading=some), Screen(80, 40))
    assert "workers         0: jobs wait until one serves the queue" in lines
    assert "                2 loading, the first for 1 min 3 s: reading weights" in lines
    assert any("no worker serves" in line for line in queue_page(replace(FULL, workers=()), Screen(80, 5)))


def test_rights_that_are_missing_are_told() -> None:
    unread = {"workers": "this user may not read it", "dead": "needs the operator or observer role"}
    lines = queue_page(replace(FULL, workers=None, loading=None, unread=unread), Screen(80, 40))
    assert "workers         –  this user may not read it" in lines
    assert "dead letters    –  needs the operator or observer role" in lines
    short = queue_page(replace(FULL, workers=None, loading=None, unread=unread), Screen(80, 5))
    assert not any("no worker serves" in line for line in short)


def test_cuts_are_in_the_middle() -> None:
    assert [cut("gpu-node-17", columns) for columns in (11, 10, 3, 2, 1, 0)] == [
        "gpu-node-17", "gpu-n…e-17", "g…7", "g…", "…", "",
    ]  # fmt: skip
    assert cell_len(pad("日本語の名前", 8)) == 8
    assert flow(["one", "two", "three", "a long one"], 9) == ["one · two", "three", "a lo… one"]
