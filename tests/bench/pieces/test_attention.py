"""How a step's CPU seconds are told beside the machine's bandwidth."""

from __future__ import annotations

from ops.bench.machine import Limits
from ops.bench.pieces.attention import _cells


def test_at_the_bandwidth_the_time_is_the_floor_with_any_number_of_threads() -> None:
    limits = Limits(read_bytes_s=10e9, flops_s=1.0)
    for threads in (1, 4):
        clock_s = 20e6 / 10e9
        native, _, ratio, floor, rate = _cells(threads * clock_s, threads * 0.01, 20_000_000, limits, threads)
        assert (native, ratio, rate) == (floor, "5.0x", "10.0")
