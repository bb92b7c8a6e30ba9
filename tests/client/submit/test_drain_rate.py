"""How long a refused producer is told to wait."""

from __future__ import annotations

from millstream.client.submit.drain_rate import FIRST_S, LEAST_S, MOST_S, DrainRate


def test_nothing_is_known_at_first() -> None:
    assert DrainRate().retry_after_s(1000) == FIRST_S


def test_until_a_hundredth_is_free_at_the_rate_that_was_seen() -> None:
    backlog = DrainRate()
    backlog.saw(1000, 0.0)
    backlog.saw(990, 0.5)  # too soon to tell
    assert backlog.retry_after_s(1000) == FIRST_S
    backlog.saw(995, 2.0, added=5)  # ten went in two seconds
    assert backlog.retry_after_s(1000) == 2.0


def test_a_standstill_and_a_torrent_are_bounded() -> None:
    backlog = DrainRate()
    backlog.saw(1000, 0.0)
    backlog.saw(1000, 10.0)
    assert backlog.retry_after_s(1000) == MOST_S
    backlog = DrainRate()
    backlog.saw(1_000_000, 0.0)
    backlog.saw(0, 1.0)
    assert backlog.retry_after_s(100) == LEAST_S
