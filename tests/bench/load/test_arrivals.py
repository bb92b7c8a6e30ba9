"""Arrivals and what is said of them, against values by hand."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from ops.bench.load.arrivals import LoadPoint, Prompts, Served, poisson


def test_so_many_arrive_in_so_many_seconds_and_always_the_same() -> None:
    times = poisson(20.0, 1000, seed=3)
    assert len(times) == 1000
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 50.0
    assert times == poisson(20.0, 1000, seed=3)
    assert times != poisson(20.0, 1000, seed=4)


def test_arrivals_are_poissons() -> None:
    """Gaps scatter as much as they are long, and what comes in a second as much as its root: a regular, or a
    bunched, generator would show here."""
    times = poisson(20.0, 20_000, seed=5)
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=0.01)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.05)
    seconds = [0] * 1000
    for at in times:
        seconds[min(int(at), 999)] += 1
    assert statistics.variance(seconds) == pytest.approx(20.0, rel=0.15)


def test_prompts_share_only_their_prefix_in_every_run() -> None:
    prompts = Prompts(shared=20, own=6, output=5)
    first, second = (prompts.arrivals(10.0, 8, vocab=500, seed=seed) for seed in (1, 2))
    everything = [arrival.prompt for arrival in first + second]
    assert {prompt[:20] for prompt in everything} == {first[0].prompt[:20]}
    assert len({prompt[20:] for prompt in everything}) == 16
    assert all(len(prompt) == 26 and max(prompt) < 500 for prompt in everything)
    assert {arrival.max_tokens for arrival in first} == {5}


def served(due_s: float, first_s: float | None, end_s: float | None) -> Served:
    return Served(due_s, 1, first_s, end_s)


def test_a_point_counts_from_the_scheduled_arrival_after_warm_up() -> None:
    requests = [served(0.0, 50.0, 90.0), served(1.0, 2.0, 3.0), served(2.0, 2.5, 5.0)]
    point = LoadPoint.of(1.0, requests, warm=1, cut_s=100.0)
    assert point.latency_s.mean == pytest.approx(2.5)  # 2 and 3
    assert point.first_token_s.mean == pytest.approx(0.75)  # 1 and 0.5
    assert point.done_s == pytest.approx(2 / 4)  # from 1.0 to 5.0
    assert (point.requests, point.unfinished) == (2, 0)
    assert not point.saturated  # 2 s of arrivals and 2 s of the fastest request: 4 s


def test_what_did_not_end_counts_until_the_cut() -> None:
    requests = [served(0.0, 1.0, 2.0), served(1.0, 4.0, None), served(2.0, None, None)]
    point = LoadPoint.of(1.0, requests, warm=0, cut_s=10.0)
    assert point.latency_s.p99 == pytest.approx(9.0)
    assert point.first_token_s.p99 == pytest.approx(8.0)
    assert point.done_s == pytest.approx(1 / 10)
    assert point.unfinished == 2
    assert point.saturated


def test_a_growing_queue_is_saturation_and_a_slow_engine_is_not() -> None:
    slow = [served(at, at + 5.0, at + 9.0) for at in range(20)]
    behind = [served(at, 2.0 * at + 0.5, 2.0 * at + 1.0) for at in range(20)]
    assert not LoadPoint.of(1.0, slow, warm=0, cut_s=100.0).saturated
    assert LoadPoint.of(1.0, behind, warm=0, cut_s=100.0).saturated
