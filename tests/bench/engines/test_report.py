"""What the tables say."""

from __future__ import annotations

from dataclasses import replace

from ops.bench.engines import report
from ops.bench.engines.results import Comparison, Measured, Report
from ops.bench.limits.work import Work
from ops.bench.machine import Limits
from ops.bench.measures import Run, Timing

WORK = Work(prefill_flops=100.0, decode_flops=50.0, kv_bytes=5.0, weight_bytes=10.0, rounds=10)
OURS = Run(2.0, (Timing(0.5, 1.4, 10), Timing(0.6, 2.0, 10)), steps=10, peak_bytes=2**30)
SLOWER = Run(4.0, (Timing(None, 4.0, 10), Timing(None, 4.0, 10)), steps=None, peak_bytes=2**31)
COMPARISON = Comparison(
    "tiny14m", "a", "2 x (64 -> 10)", 128, WORK,
    (Measured("millstream", (OURS, SLOWER)), Measured("hf-static", (SLOWER,), "over 5 s")),
)  # fmt: skip
REPORT = Report(
    date="2026-01-02",
    commit="abc1234+",
    machine="a processor, 2 cores, Python 3.11.7",
    load=0.1,
    command="python -m ops.bench engine",
    threads=2,
    limits=Limits(read_bytes_s=100.0, flops_s=100.0),
    absent={"vllm": "absent: no vllm"},
    versions={"millstream": "0.1.0"},
    loads={"tiny14m": {"millstream": 4.06, "hf-static": 2.0}},
    comparisons=(COMPARISON,),
)


def _cells(engine: str) -> list[str]:
    lines = report.table(COMPARISON, REPORT).splitlines()
    return [
        cell.strip() for cell in next(line for line in lines if line.startswith(f"| {engine}"))[2:].split("|")
    ]


def test_a_row_has_a_dash_for_what_could_not_be_measured() -> None:
    # least time: 100/100 + max(50/100, (90 + 5)/100) = 1.95 s of 2.0
    assert _cells("millstream")[:10] == [
        "millstream", "10 (5)", "74", "0.50/0.60/0.60", "100/156/156", "1.00", "52%", "75%", "98%", "1.00x",
    ]  # fmt: skip
    assert _cells("hf-static")[:10] == [
        "hf-static", "5", "37", "–", "–", "2.00", "–", "38%", "49%", "2.00x",
    ]  # fmt: skip


def test_all_of_it_fits_a_terminal_and_says_what_is_missing() -> None:
    text = report.text(REPORT)
    assert "vllm: absent: no vllm" in text
    assert "hf-static: over 5 s" in text
    assert "tiny14m was loaded, from imports to ready: millstream 4.1 s, hf-static 2.0 s" in text
    assert "at most 10 output tokens/s" in text
    assert max(map(len, report.table(COMPARISON, REPORT).splitlines())) <= 120


def test_a_summary_is_over_the_workloads_that_both_have() -> None:
    twice = Run(1.0, OURS.timings, steps=10, peak_bytes=2**29)
    second = replace(
        COMPARISON, workload="b", engines=(Measured("millstream", (twice,)), COMPARISON.engines[1])
    )
    third = replace(COMPARISON, workload="c", engines=(Measured("millstream", ()), COMPARISON.engines[1]))
    [text] = report.summary([COMPARISON, second, third])
    assert text.startswith("### tiny14m: millstream over each of the others")
    *_, row = text.splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "hf-static",
        "2.828",
        "2.000 (a)",
        "0.50x",
    ]
    assert list(report.summary([third])) == []
